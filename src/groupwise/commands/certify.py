"""`groupwise certify`: runs the tests that verify published methods, and writes their certificates."""

import json
from pathlib import Path

from groupwise.certificates.certificate import certify
from groupwise.certificates.page import certificate_page
from groupwise.config.problems import suggestion
from groupwise.config.registry import methods
from groupwise.data import Usage, visible
from groupwise.runs.disk import storage_errors, write_file

ALL = "all"


def write_certificates(name: str, out: str) -> int:
    """Write NAME.json and NAME.html for a method, or for all, to a directory. Returns 1 if a test did not pass."""
    known = methods()
    if name != ALL and name not in known:
        raise Usage(f"no method is called {name!r}", fix=suggestion(name, known))
    names, directory, failed = list(known) if name == ALL else [name], Path(out), False
    width = max(map(len, names)) + 2
    for certificate in certify(names):
        page = directory / f"{certificate.name}.html"
        with storage_errors("the certificate", directory):
            directory.mkdir(parents=True, exist_ok=True)
            write_file(page.with_suffix(".json"), json.dumps(certificate.as_json(), indent=1).encode())
            write_file(page, certificate_page(certificate).encode())
        failed |= not certificate.passed
        passed = sum(proof.result == "passed" for proof in certificate.proofs)
        line = f"{certificate.name:<{width}}{passed} of {len(certificate.proofs)} proofs passed  {page}"
        print(visible(line))
    return int(failed)
