#!/usr/bin/env python3
"""docs/examples/kubernetes against the published schemas: Kubernetes' own kinds against those that PyPI's
kubernetes-validate ships, strictly; custom resources against their definitions, if CRDS names files or folders of them
(clones of kubernetes-sigs/gateway-api, kubernetes-sigs/gateway-api-inference-extension, kserve/kserve).  Each field is
also renamed, and each leaf given another type: both must be found.
usage: kubernetes_schemas.py BUILD; run by the Python of `make kubernetes-test`"""
import copy
import jsonschema, kubernetes_validate, yaml
from harness import *

EXAMPLES = os.path.join(os.path.dirname(HERE), "docs/examples/kubernetes")
FREE = ("labels", "matchLabels", "annotations", "limits", "requests")    # maps whose keys are the user's


def strict(schema):
    """As an API server that is asked for strict decoding: fields that a schema does not name are wrong."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: strict(v) for k, v in schema.items() if not k.startswith("x-kubernetes-")}
    if isinstance(out.get("properties"), dict) and "additionalProperties" not in out and \
            not schema.get("x-kubernetes-preserve-unknown-fields"):
        out["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["type"] = ["integer", "string"]
        out.pop("anyOf", None)
    return out


def definitions():
    """(group/version, kind) -> schema, of the files in CRDS."""
    found = {}
    for place in os.environ.get("CRDS", "").split():
        for d, _, files in os.walk(place) if os.path.isdir(place) else [(os.path.dirname(place), [], [os.path.basename(place)])]:
            for f in files:
                if not f.endswith((".yaml", ".yml")):
                    continue
                with open(os.path.join(d, f)) as text:
                    body = text.read()
                if "kind: CustomResourceDefinition" not in body or "{{" in body.split("openAPIV3Schema")[0]:
                    continue
                for crd in yaml.safe_load_all(body):
                    if not crd or crd.get("kind") != "CustomResourceDefinition":
                        continue
                    for v in crd["spec"]["versions"]:
                        s = strict(v["schema"]["openAPIV3Schema"])
                        s.setdefault("properties", {})["metadata"] = {"type": "object", "required": ["name"]}
                        found[f"{crd['spec']['group']}/{v['name']}", crd["spec"]["names"]["kind"]] = s
    return found


CRDS = definitions()


def wrong(doc):
    """What is wrong with an object; "" if nothing, None without a schema."""
    key = doc.get("apiVersion"), doc.get("kind")
    if key in CRDS:
        e = next(jsonschema.Draft7Validator(CRDS[key]).iter_errors(doc), None)
        return e.message if e else ""
    try:
        kubernetes_validate.validate(doc, kubernetes_validate.latest_version(), strict=True)
        return ""
    except kubernetes_validate.SchemaNotFoundError:
        return None
    except kubernetes_validate.ValidationError as e:
        return str(e)


def fields(node, path=()):
    """Paths of all fields whose names are the schema's."""
    for k, v in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        label = path and (path[-1] in FREE or path[-1] == "selector" and isinstance(v, str))
        if isinstance(k, str) and path and not label:
            yield path + (k,)
        yield from fields(v, path + (k,))


def broken(doc, path, how):
    out = copy.deepcopy(doc)
    at = out
    for k in path[:-1]:
        at = at[k]
    how(at, path[-1])
    return out


def rename(at, k):
    at[k + "x"] = at.pop(k)


def retype(at, k):
    at[k] = {"not": "this"} if not isinstance(at[k], dict) else 7.5


def judge(name, text):
    for doc in yaml.safe_load_all(text):
        what = f"{name}: {doc['kind']}"
        w = wrong(doc)
        if w is None:
            print(f"SKIP: {what}: no schema; name the definition of {doc['apiVersion']} in CRDS")
            continue
        check(w == "", f"{what}: {w}")
        seen = 0
        for path in fields(doc):
            if path[0] == "metadata":
                continue
            check(wrong(broken(doc, path, rename)), f"{what}: a renamed field is found: {path}")
            check(wrong(broken(doc, path, retype)), f"{what}: another type is found: {path}")
            seen += 1
        check(seen, f"{what}: it has fields")
        print(f"{what}: valid; {2 * seen} mistakes found")


for f in sorted(os.listdir(EXAMPLES)):
    if f.endswith(".yaml"):
        with open(os.path.join(EXAMPLES, f)) as file:
            text = file.read()
        judge(f, text)
        if "#tls " in text:
            judge(f + " with TLS", text.replace("#tls ", ""))
done()
