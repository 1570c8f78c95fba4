/* locate.c - finds out what a MODEL on the command line is.  See locate.h. */
#include "locate.h"

#include <assert.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "gguf.h"

#define QUANT_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

static bool join(char *out, size_t n, const char *a, const char *b)
{
	return (size_t)snprintf(out, n, "%s/%s", a, b) < n;
}

/* Join a path that fits, because the caller has checked the length of its first part. */
static void join_short(char *out, size_t n, const char *a, const char *b)
{
	bool fits = join(out, n, a, b);

	assert(fits);
}

static bool is_dir(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static bool is_file(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* $VAR, or $HOME/below if it is unset or empty. */
static bool base_dir(char *out, size_t n, const char *var, const char *below)
{
	const char *v = getenv(var), *home = getenv("HOME");

	if (v && *v)
		return (size_t)snprintf(out, n, "%s", v) < n;
	return home && *home && join(out, n, home, below);
}

/* The directory of downloaded Hugging Face repositories. */
static bool hub_dir(char *out, size_t n)
{
	const char *hub = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME");
	char cache[3072];

	if (hub && *hub)
		return (size_t)snprintf(out, n, "%s", hub) < n;
	if (home && *home)
		return join(out, n, home, "hub");
	return base_dir(cache, sizeof(cache), "XDG_CACHE_HOME", ".cache") &&
	       join(out, n, cache, "huggingface/hub");
}

bool locate_is_id(const char *s)
{
	int slashes = 0;

	if (!isalnum((unsigned char)*s) || strlen(s) > 200 || strstr(s, "..") || strstr(s, "--"))
		return false;
	for (; *s; s++)
		if (*s == '/') {
			if (slashes++ || !isalnum((unsigned char)s[1]))
				return false;
		} else if (!isalnum((unsigned char)*s) && !strchr("-_.", *s)) {
			return false;
		}
	return true;
}

size_t locate_stem(const char *name, int32_t *part)
{
	size_t n = strlen(name);
	int32_t of;

	*part = 0;
	if (n <= 5 || strcmp(name + n - 5, ".gguf"))
		return 0;
	return gguf_part_name(name, part, &of) ? n - strlen("-00002-of-00003.gguf") : n - 5;
}

bool locate_quant(const char *file, const char *quant)
{
	const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
	size_t len = strlen(quant), n;
	int32_t part;

	n = locate_stem(name, &part);
	return len && n >= len && !strncasecmp(name + n - len, quant, len) &&
	       (n == len || strchr("-._", name[n - len - 1]));
}

/* Count the models among the GGUF files of a directory, by their first parts; a file of one into `only`.  quant:
 * only those, and in directories below, too. */
static int scan_dir(const char *dir, const char *quant, int deeper, char only[4096])
{
	char path[4096];
	struct dirent *e;
	DIR *d = opendir(dir);
	int32_t part;
	int n = 0;

	if (!d)
		return -errno;
	while ((e = readdir(d)) != NULL) {
		size_t stem = locate_stem(e->d_name, &part);

		if (!join(path, sizeof(path), dir, e->d_name))
			continue;
		if (stem && part < 2 && (!quant || locate_quant(e->d_name, quant))) {
			n++;
			snprintf(only, 4096, "%s", path);
		} else if (quant && deeper && !stem && *e->d_name != '.' && is_dir(path)) {
			int below = scan_dir(path, quant, deeper - 1, only);

			n += below > 0 ? below : 0;
		}
	}
	closedir(d);
	return n;
}

/* A directory is a model if it has config.json, else by its single GGUF file.  quant, if not NULL, chooses one. */
static int take_dir(struct located *out, const char *dir, const char *quant, char *err, size_t errlen)
{
	char path[4096], only[4096];
	int n;

	join_short(path, sizeof(path), dir, "config.json");
	if (!quant && is_file(path)) {
		snprintf(out->path, sizeof(out->path), "%s", dir);
		out->gguf = false;
		return 0;
	}
	n = scan_dir(dir, quant, 1, only);
	if (n < 0) {
		snprintf(err, errlen, "%s: %s", dir, strerror(-n));
		return n;
	}
	if (n == 1) {
		snprintf(out->path, sizeof(out->path), "%s", only);
		out->gguf = true;
		return 0;
	}
	if (quant)
		snprintf(err, errlen, "%s holds %d GGUF files whose names end in %s", dir, n, quant);
	else if (n)
		snprintf(err, errlen, "%s holds %d GGUF files and no config.json: name the file", dir, n);
	else
		snprintf(err, errlen, "%s holds no config.json and no GGUF file: it is no model", dir);
	return -EINVAL;
}

bool locate_repo(char *out, size_t n, const char *id)
{
	char name[2 * 256];
	size_t at = 0;

	assert(locate_is_id(id));              /* so it is short, with at most one slash */
	for (; *id; id++) {
		if (*id == '/')
			name[at++] = '-';
		name[at++] = *id == '/' ? '-' : *id;
	}
	name[at] = 0;
	at = strlen("/models--") + at + 300;   /* what stands below: /snapshots, a revision */
	return n > at && hub_dir(out, n - at) && snprintf(out + strlen(out), n - strlen(out), "/models--%s", name) > 0;
}

/* An id: hub/models--org--name/snapshots/<content of refs/main>.  model: the id as given, with its :QUANT. */
static int take_id(struct located *out, const char *model, const char *id, const char *quant, char *err, size_t errlen)
{
	char repo[3500], path[4096], rev[128];
	size_t n;
	FILE *f;

	if (!locate_repo(repo, sizeof(repo), id)) {
		snprintf(err, errlen, "%s is no file or directory here, and neither HOME nor HF_HOME is a path of "
		         "downloaded models", model);
		return -ENOENT;
	}
	join_short(path, sizeof(path), repo, "refs/main");
	f = fopen(path, "re");
	n = f ? fread(rev, 1, sizeof(rev) - 1, f) : 0;
	if (f)
		fclose(f);
	rev[n] = 0;
	rev[strcspn(rev, " \r\n")] = 0;
	strcat(repo, "/snapshots");            /* the assert above leaves room for it */
	join_short(path, sizeof(path), repo, rev);
	if (!*rev || strchr(rev, '/') || *rev == '.' || !is_dir(path)) {
		snprintf(err, errlen, "%s is no file or directory here and is not in %.*s; to download it: slipring "
		         "pull %s", model, (int)(strstr(repo, "/models--") - repo), repo, model);
		return -ENOENT;
	}
	return take_dir(out, path, quant, err, errlen);
}

static int take_default(struct located *out, char *err, size_t errlen)
{
	char cache[3072];

	if (!base_dir(cache, sizeof(cache), "XDG_CACHE_HOME", ".cache")) {
		snprintf(err, errlen, "no MODEL given, and neither HOME nor XDG_CACHE_HOME is a path to the "
		         "default one");
		return -ENOENT;
	}
	snprintf(out->path, sizeof(out->path), "%s/slipring/models/%s", cache, LOCATE_DEFAULT);
	snprintf(out->name, sizeof(out->name), "%.*s", (int)strlen(LOCATE_DEFAULT) - 5, LOCATE_DEFAULT);
	out->gguf = true;
	if (is_file(out->path))
		return 0;
	snprintf(err, errlen, "no MODEL given, and the default one is not at %s: name a MODEL, or download it by "
	         "tools/fetch-model.sh of the source tree", out->path);
	return -ENOENT;
}

/* The name that is served by default: the path as given, or the last part of a long path. */
static void set_name(struct located *out, const char *model)
{
	const char *from = model, *end = model + strlen(model);

	if (end - model >= (ptrdiff_t)sizeof(out->name)) {
		while (end > model + 1 && end[-1] == '/')
			end--;
		for (from = end; from > model && from[-1] != '/'; from--)
			;
	}
	snprintf(out->name, sizeof(out->name), "%.*s", (int)(end - from), from);
}

/* "org/name:Q4_K_M": the id into `id`, the quantization returned, or NULL if there is none. */
static const char *split_id(const char *model, char id[256])
{
	size_t n = strcspn(model, ":");
	const char *quant = model[n] ? model + n + 1 : NULL;

	*id = 0;
	if (n < 256 && (!quant || (*quant && strlen(quant) < 64 && !quant[strspn(quant, QUANT_CHARS)]))) {
		memcpy(id, model, n);
		id[n] = 0;
	}
	return quant;
}

int locate_model(struct located *out, const char *model, char *err, size_t errlen)
{
	char id[256];
	const char *quant;
	struct stat st;

	memset(out, 0, sizeof(*out));
	if (!model || !*model)
		return take_default(out, err, errlen);
	if (strlen(model) >= sizeof(out->path) - 256 || (strlen(model) > 255 && !strchr(model, '/'))) {
		snprintf(err, errlen, "MODEL is a path of %zu bytes; at most %zu are allowed",
		         strlen(model), sizeof(out->path) - 256);
		return -ENAMETOOLONG;
	}
	set_name(out, model);
	if (stat(model, &st) == 0) {
		if (S_ISDIR(st.st_mode))
			return take_dir(out, model, NULL, err, errlen);
		if (!S_ISREG(st.st_mode)) {
			snprintf(err, errlen, "%s is no regular file or directory", model);
			return -EINVAL;
		}
		snprintf(out->path, sizeof(out->path), "%s", model);
		out->gguf = true;
		return 0;
	}
	if (errno != ENOENT && errno != ENOTDIR) {
		int rc = -errno;

		snprintf(err, errlen, "%s: %s", model, strerror(-rc));
		return rc;
	}
	quant = split_id(model, id);
	if (locate_is_id(id))
		return take_id(out, model, id, quant, err, errlen);
	snprintf(err, errlen, "%s: no such file or directory", model);
	return -ENOENT;
}

/* ---- the vocabulary's hash ------------------------------------------------------------------ */

static int hash_file(EVP_MD_CTX *md, const char *path, char *err, size_t errlen)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
	uint8_t buf[65536];
	ssize_t n;

	if (fd < 0) {
		rc = errno == ENOENT ? 0 : -errno;
		snprintf(err, errlen, "%s: %s", path, strerror(errno));
		return rc;
	}
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		EVP_DigestUpdate(md, buf, (size_t)n);
	if (n < 0) {
		rc = -errno;
		snprintf(err, errlen, "%s: %s", path, strerror(-rc));
	}
	close(fd);
	return rc;
}

static int hash_gguf(EVP_MD_CTX *md, const char *path, char *err, size_t errlen)
{
	const struct gguf_value *v;
	struct gguf_file f;
	int rc = gguf_open(&f, path, err, errlen);

	if (rc)
		return rc;
	v = gguf_find(f.g, "tokenizer.ggml.tokens");
	if (v)
		EVP_DigestUpdate(md, v->data, v->bytes);
	gguf_close(&f);
	return 0;
}

int locate_vocab_hash(const struct located *m, uint8_t out[32], char *err, size_t errlen)
{
	/* OpenSSL 3.0 makes its tables at the first call, and crashes if it has no memory for them. */
	EVP_MD_CTX *md = OSSL_LIB_CTX_get0_global_default() ? EVP_MD_CTX_new() : NULL;
	char path[4096 + 16];
	int rc;

	if (!md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
		EVP_MD_CTX_free(md);
		snprintf(err, errlen, "SHA-256 is not to be had of OpenSSL, for lack of memory or by its settings");
		return -ENOTSUP;
	}
	if (m->gguf) {
		rc = hash_gguf(md, m->path, err, errlen);
	} else {
		snprintf(path, sizeof(path), "%s/tokenizer.json", m->path);
		rc = hash_file(md, path, err, errlen);
	}
	if (rc == 0 && EVP_DigestFinal_ex(md, out, NULL) != 1) {
		snprintf(err, errlen, "%s: OpenSSL cannot make its SHA-256", m->path);
		rc = -EIO;
	}
	EVP_MD_CTX_free(md);
	return rc;
}
