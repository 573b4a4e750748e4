"""`groupwise certify`: runs the tests that verify published methods, and writes their certificates."""

import json
from pathlib import Path

from groupwise.certificates.certificate import certify, describe
from groupwise.certificates.certificate_page import certificate_page
from groupwise.certificates.methods_page import map_page
from groupwise.certificates.proofs import repository
from groupwise.certificates.studies import run_studies
from groupwise.config.recipe_errors import method_suggestion
from groupwise.config.registry import methods
from groupwise.core import Usage, counted, visible
from groupwise.runs.atomic_writes import check_writable, storage_errors, write_file

ALL, MAP = "all", "index.html"


def write_certificates(name: str, out: str, *, effect: bool = False) -> int:
    """Write a method's certificate (NAME.json, NAME.html) to a directory; for all methods also index.html.

    With `effect`, the studies of their effects run first, where no fresh result is stored. Returns 1 if a test did not
    pass.
    """
    known = methods()
    if name != ALL and name not in known:
        raise Usage(f"no method is called {name!r}", fix=method_suggestion(name, known))
    names, directory = list(known) if name == ALL else [name], Path(out)
    width = max(map(len, names)) + 2
    with storage_errors("the certificates", directory):
        check_writable(directory / MAP, MAP)
    if effect:
        run_studies(names, repository())
    print(f"running the proofs (tests) of {counted(len(names), 'method')}", flush=True)
    certificates = list(certify(names))
    with storage_errors("the certificates", directory):
        for certificate in certificates:
            page = directory / f"{certificate.name}.html"
            write_file(page.with_suffix(".json"), json.dumps(certificate.as_json(), indent=1).encode())
            write_file(page, certificate_page(certificate).encode())
            passed = sum(proof.result == "passed" for proof in certificate.proofs)
            print(visible(f"{certificate.name:<{width}}{passed} of {len(certificate.proofs)} proofs passed  {page}"))
        if name == ALL:
            write_file(directory / MAP, map_page(certificates).encode())
            print(visible(str(directory / MAP)))
    return int(not all(certificate.passed for certificate in certificates))


def write_map(file: str) -> int:
    """Write the map of all methods to one HTML file, without running a test."""
    path = Path(file)
    with storage_errors("the map", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, map_page(describe(list(methods()))).encode())
    print(visible(str(path)))
    return 0
