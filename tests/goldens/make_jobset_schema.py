"""Write `jobset_schema.json`: the schema of a JobSet, without that of the pods.

The JobSet's own fields are those of its CustomResourceDefinition (kubernetes-sigs/jobset, commit
08dfbdfd, Apache License 2.0). What a replicated job has under `template` is a Job of Kubernetes,
which the tests hold against the schemas of kubernetes-validate.

    python tests/goldens/make_jobset_schema.py jobset.x-k8s.io_jobsets.yaml
"""

import json
import sys
from pathlib import Path

import yaml

KEPT = ("type", "enum", "required", "properties", "items", "minimum", "maximum", "maxItems")


def kept(schema):
    """Return what a validator of JSON Schema needs; fields that are not named are refused."""
    found = {name: schema[name] for name in KEPT if name in schema}
    if "properties" in found:
        properties = {name: kept(one) for name, one in found["properties"].items()}
        found |= {"properties": properties, "additionalProperties": False}
    if "items" in found:
        found["items"] = kept(found["items"])
    return found


def main():
    """Read the definition, and write the schema beside this file."""
    [version] = yaml.safe_load(Path(sys.argv[1]).read_text())["spec"]["versions"]
    whole = version["schema"]["openAPIV3Schema"]["properties"]
    job = whole["spec"]["properties"]["replicatedJobs"]["items"]["properties"]
    job["template"] = {"type": "object"}
    whole["spec"]["properties"].pop("volumeClaimPolicies", None)
    schema = {
        "$comment": "from kubernetes-sigs/jobset, Apache License 2.0; see make_jobset_schema.py",
        "properties": {
            "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
            "kind": {"const": "JobSet"},
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
    }
    schema["properties"] |= {"metadata": {"type": "object"}, "spec": kept(whole["spec"])}
    schema["additionalProperties"] = False
    text = json.dumps(schema, indent=1)
    (Path(__file__).parent / "jobset_schema.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
