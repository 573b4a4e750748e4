"""Writes the part of Kubernetes' schema that a manifest uses: python -m tools.kubernetes_schema MANIFEST SCHEMA.

The definitions are those of Kubernetes' OpenAPI (Apache-2.0), in the newest version of the package kubernetes-validate:
`pip install kubernetes-validate` in a separate environment. Unknown keys are errors. Definitions that no object of the
manifest has accept anything.
"""

import json
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

GROUPS = {"v1": "core.v1", "apps/v1": "apps.v1", "batch/v1": "batch.v1"}
REFERENCE = re.compile(r"#/\$defs/(.*)$")
DROPPED = ("description", "format", "default", "title")


def newest_definitions() -> tuple[str, dict[str, Any]]:
    """The newest version of Kubernetes that the package knows, and its definitions."""
    spec = find_spec("kubernetes_validate")
    assert spec and spec.origin, "pip install kubernetes-validate"
    files = Path(spec.origin).parent.glob("kubernetes-json-schema/v*-local-strict/_definitions.json")
    newest = max(files, key=lambda file: [int(number) for number in re.findall(r"\d+", file.parent.name)])
    return newest.parent.name.partition("-")[0], json.loads(newest.read_text())["$defs"]


def referenced(schema: Mapping[str, Any]) -> str:
    """The name of the definition that a schema refers to; empty if it has its own text."""
    match = REFERENCE.search(schema.get("$ref", ""))
    return match[1] if match else ""


def used(name: str, value: Any, definitions: Mapping[str, Any], names: set[str]) -> None:
    """Add the definitions of a value of this definition, and of all values in it."""
    names.add(name)
    for key, child in value.items() if isinstance(value, dict) else ():
        schema = definitions[name].get("properties", {}).get(key, {})
        for part, values in (
            (schema, [child]),
            (schema.get("items") or {}, child if isinstance(child, list) else []),
            (schema.get("additionalProperties") or {}, [*child.values()] if isinstance(child, dict) else []),
        ):
            if isinstance(part, dict) and (other := referenced(part)):
                for each in values:
                    used(other, each, definitions, names)


def shortened(schema: Any, names: set[str]) -> Any:
    """A schema without texts. A definition that is not among `names` accepts anything."""
    if isinstance(schema, list):
        return [shortened(each, names) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if other := referenced(schema):
        return {"$ref": f"#/$defs/{other}"} if other in names else {}
    kept = {key: value for key, value in schema.items() if not key.startswith("x-")}
    properties = {key: shortened(value, names) for key, value in kept.pop("properties", {}).items()}
    plain = {key: shortened(value, names) for key, value in kept.items() if key not in DROPPED}
    return {**plain, "properties": properties} if properties else plain


def main(manifest: str, target: str) -> None:
    """Write the schema of a manifest."""
    import yaml

    version, definitions = newest_definitions()
    documents, names = list(yaml.safe_load_all(Path(manifest).read_text())), set[str]()
    for document in documents:
        used(f"io.k8s.api.{GROUPS[document['apiVersion']]}.{document['kind']}", document, definitions, names)
    lines = [f"{json.dumps(name)}: {json.dumps(shortened(definitions[name], names))}" for name in sorted(names)]
    note = f"Of the OpenAPI specification of Kubernetes {version}, Apache-2.0; written by tools/kubernetes_schema.py"
    Path(target).write_text(f'{{"$comment": "{note}",\n"$defs": {{\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
