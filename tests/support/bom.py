"""The part of CycloneDX 1.6 that our bills of materials use, as a closed schema.

Written down from the specification's bom-1.6.schema.json: field names, required fields, the words
that are allowed. A field that is not here fails the test until it is looked up.
"""

from __future__ import annotations

from typing import Any

import jsonschema

TEXT = {"type": "string", "minLength": 1}


def closed(required: tuple[str, ...], **properties: object) -> dict[str, Any]:
    """An object with these fields and no other."""
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


PATCH = closed(("type",), type={"const": "backport"}, diff=closed((), url=TEXT))
LIBRARY = closed(
    ("type", "name"),
    **{"type": {"const": "library"}, "bom-ref": TEXT, "name": TEXT, "version": {"type": "string"}},
    purl={
        "type": "string",
        "pattern": r"^pkg:(pypi/[a-z0-9-]+@\S+|deb/\w+/\S+@\S+\?arch=\w+&distro=\S+)$",
    },
    licenses={"type": "array", "maxItems": 1, "items": closed(("expression",), expression=TEXT)},
    pedigree=closed((), patches={"type": "array", "minItems": 1, "items": PATCH}),
)
BASE = closed(("type", "name"), type={"const": "container"}, name=TEXT)
IMAGE = closed(
    ("type", "name"),
    **{"type": {"const": "container"}, "bom-ref": TEXT, "name": TEXT},
    pedigree=closed((), ancestors={"type": "array", "minItems": 1, "items": BASE}),
)
BOM = closed(
    ("$schema", "bomFormat", "specVersion", "serialNumber", "version", "metadata", "components"),
    **{"$schema": {"const": "http://cyclonedx.org/schema/bom-1.6.schema.json"}},
    bomFormat={"const": "CycloneDX"},
    specVersion={"const": "1.6"},
    serialNumber={
        "type": "string",
        "pattern": "^urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
    },
    version={"const": 1},
    metadata=closed((), component=IMAGE),
    components={"type": "array", "minItems": 1, "uniqueItems": True, "items": LIBRARY},
)


def check(bill: dict[str, Any]) -> None:
    """Raises jsonschema.ValidationError for what is no such bill, AssertionError for a ref twice."""
    jsonschema.validate(bill, BOM)
    refs = [part["bom-ref"] for part in bill["components"]]
    assert len(refs) == len(set(refs))
