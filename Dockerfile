# Groupwise on CPUs, with the sandbox of code answers and the locked dependencies.
#   docker build -t groupwise .
#   docker run --rm -v "$PWD:/work" groupwise train --iterations 5
# The sandbox makes namespaces, which Docker's default profile forbids: code answers need
# `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`; `groupwise doctor` says whether it works.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap openssl \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY recipes ./recipes
RUN pip install --no-cache-dir --no-deps --no-build-isolation . && rm -rf /src/*

RUN useradd --create-home groupwise
USER groupwise
WORKDIR /work
ENV OMP_NUM_THREADS=1
ENTRYPOINT ["groupwise"]
CMD ["doctor"]
