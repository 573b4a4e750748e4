# Groupwise on CPUs, with the sandbox of code answers and the locked dependencies.
#   docker build --build-arg TORCH_INDEX=URL -t groupwise .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" groupwise train --iterations 5
# URL is the index of torch's CPU builds: pytorch.org/get-started/locally names it. Without it torch is the CUDA build of
# the lock, with several GB of libraries that a CPU does not need.
# The sandbox makes namespaces, which Docker's default profile forbids: code answers need
# `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`; `groupwise doctor` says whether it works.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap openssl \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
ARG TORCH_INDEX=""
COPY requirements.lock ./
# The hashes of the lock are those of the package index, so torch and the libraries of CUDA leave it first.
RUN if [ -n "$TORCH_INDEX" ]; then \
        pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX" "$(grep -o '^torch==[0-9.]*' requirements.lock)" \
        && sed -i -E '/^(torch|triton|cuda-.*|nvidia-.*)==/,/[^\\]$/d' requirements.lock; \
    fi
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY recipes ./recipes
RUN pip install --no-cache-dir --no-deps --no-build-isolation . && rm -rf /src/*

RUN useradd groupwise && mkdir /work && chown groupwise /work
USER groupwise
WORKDIR /work
# A user of `--user` has no home directory and no name: caches go to /tmp.
ENV HOME=/tmp USER=groupwise OMP_NUM_THREADS=1
ENTRYPOINT ["groupwise"]
CMD ["doctor"]
