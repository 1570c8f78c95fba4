/* auth.c - see auth.h. */
#define OPENSSL_SUPPRESS_DEPRECATED    /* SHA256_Init and others: see sha256() */
#include "auth.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX  65536
#define LINE_MAX_ 4096

struct key { uint8_t sum[32]; struct auth_right right; uint32_t order; };

struct auth {
	const struct config *cfg;
	struct quota_table *quotas;
	struct key *key;
	size_t n, fixed;              /* the first `fixed` are not from the file; both parts are sorted */
};

/* The newer functions allocate, so they can fail; these cannot.  After a failure `sum` would hold what was
 * on the stack before: another key's sum. */
static void sha256(const char *s, size_t n, uint8_t sum[static 32])
{
	SHA256_CTX c;

	SHA256_Init(&c);
	SHA256_Update(&c, s, n);
	SHA256_Final(sum, &c);
}

uint64_t auth_hash(const char *s, size_t n)
{
	uint8_t sum[32];
	uint64_t h;

	if (!n)
		return 0;
	sha256(s, n, sum);
	memcpy(&h, sum, sizeof(h));
	return h | 1;
}

/* The tenant of a key without a name: 8 bytes of a hash of its sum.  The daemon cannot compute the key from
 * it.  The byte 0 makes it differ from the hash of any name. */
static uint64_t nameless(const uint8_t sum[static 32])
{
	char s[4 + 32] = "key";

	memcpy(s + 4, sum, 32);
	return auth_hash(s, sizeof(s));
}

uint64_t auth_salt(uint64_t tenant, uint64_t salt)
{
	char s[8 + 2 * 8] = "salt";

	if (!tenant)
		return salt;
	memcpy(s + 8, &tenant, 8);
	memcpy(s + 16, &salt, 8);
	return auth_hash(s, sizeof(s));
}

/* What a line of the key file says of its key. */
struct words { const char *name; struct auth_right right; };

/* The list has room for the next power of two: 65,536 keys move it 17 times. */
static int add(struct key **list, size_t *n, const char *key, const struct words *w)
{
	struct key *k = *list;

	if (*n >= KEYS_MAX)
		return -E2BIG;
	if (!(*n & (*n - 1))) {
		k = realloc(*list, (*n ? *n * 2 : 1) * sizeof(*k));
		if (!k)
			return -ENOMEM;
		*list = k;
	}
	k += (*n)++;
	sha256(key, strlen(key), k->sum);
	k->right = w->right;
	k->right.tenant = w->name ? auth_hash(w->name, strlen(w->name)) : nameless(k->sum);
	k->order = (uint32_t)*n;
	return 0;
}

static int by_sum(const void *a, const void *b)
{
	const struct key *k = a, *l = b;
	int d = memcmp(k->sum, l->sum, sizeof(k->sum));

	return d ? d : (k->order < l->order) - (k->order > l->order);
}

/* The key with this sum, of several the last that was given; NULL: none of these n. */
static const struct key *find(const struct key *k, size_t n, const uint8_t sum[static 32])
{
	size_t low = 0, high = n, mid;

	while (low < high) {
		mid = low + (high - low) / 2;
		if (memcmp(k[mid].sum, sum, 32) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low < n && !memcmp(k[low].sum, sum, 32) ? &k[low] : NULL;
}

static const struct option {
	const char *name;
	long long least, most;
	size_t at;                            /* an int32_t or uint32_t of struct auth_right */
} options[] = {
	{ "min-priority", INT32_MIN, 0, offsetof(struct auth_right, min_priority) },
	{ "priority", INT32_MIN, INT32_MAX, offsetof(struct auth_right, priority) },
	{ "rpm", 1, 1000000000, offsetof(struct auth_right, limits.rpm) },
	{ "tpm", 1, 1000000000, offsetof(struct auth_right, limits.tpm) },
	{ "max-parallel", 1, 1000000, offsetof(struct auth_right, limits.parallel) },
};
#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

/* Read NAME=N into *right.  0, or -EINVAL and the reason. */
static int read_option(const char *w, size_t n_name, struct auth_right *right, unsigned *given, char *why,
                       size_t whylen)
{
	for (size_t i = 0; i < N_OPTIONS; i++) {
		const struct option *o = &options[i];
		const char *number = w + n_name + 1;
		char *end;
		long long n;

		if (strlen(o->name) != n_name || memcmp(o->name, w, n_name))
			continue;
		n = strtoll(number, &end, 10);
		if (*given & 1u << i || end == number || *end || n < o->least || n > o->most) {
			snprintf(why, whylen, "%s must stand once, with a whole number from %lld to %lld", o->name,
			         o->least, o->most);
			return -EINVAL;
		}
		*given |= 1u << i;
		*(int32_t *)(void *)((char *)right + o->at) = (int32_t)n;
		return 0;
	}
	return -EINVAL;
}

/* Read what follows the key on its line: [name] [OPTION=N ..] [operator].  0, or -EINVAL and the reason.
 * A name comes before operator, so that one may be called that. */
static int read_words(char **save, const struct config *c, struct words *to, char *why, size_t whylen)
{
	unsigned given = 0;
	char *w;

	*to = (struct words){ .name = NULL };
	snprintf(why, whylen, "\"key [name] [min-priority=N] [priority=N] [rpm=N] [tpm=N] [max-parallel=N] "
	         "[operator]\" is expected");
	while ((w = strtok_r(NULL, " \t\r\n", save))) {
		const char *equals = strchr(w, '=');

		if (equals) {
			if (read_option(w, (size_t)(equals - w), &to->right, &given, why, whylen) < 0)
				return -EINVAL;
		} else if (to->name && !to->right.operator && !strcmp(w, "operator")) {
			to->right.operator = true;
		} else if (to->name || given) {
			return -EINVAL;
		} else {
			to->name = w;
		}
	}
	if (to->right.priority && !(c->scheduling_policy && !strcmp(c->scheduling_policy, "priority"))) {
		snprintf(why, whylen, "priority needs --scheduling-policy priority");
		return -EINVAL;
	}
	if (to->right.min_priority > to->right.priority)
		to->right.min_priority = to->right.priority;
	return 0;
}

/* Two lines of one name: a limit that both give must be the same.  One that one gives holds for both. */
static bool limits_agree(struct quota_limits *a, struct quota_limits *b)
{
	uint32_t *x[] = { &a->rpm, &a->tpm, &a->parallel }, *y[] = { &b->rpm, &b->tpm, &b->parallel };

	for (int i = 0; i < 3; i++) {
		if (*x[i] && *y[i] && *x[i] != *y[i])
			return false;
		*x[i] = *y[i] = *x[i] ? *x[i] : *y[i];
	}
	return true;
}

static int by_tenant(const void *a, const void *b)
{
	const struct key *k = a, *l = b;

	return (k->right.tenant > l->right.tenant) - (k->right.tenant < l->right.tenant);
}

/* Join the limits of each name. */
static int join(struct key *k, size_t n, const char *path, char *err, size_t errlen)
{
	if (n)
		qsort(k, n, sizeof(*k), by_tenant);
	for (int pass = 0; pass < 2; pass++)          /* the second brings the last line's to the first */
		for (size_t i = 1; i < n; i++)
			if (k[i].right.tenant == k[i - 1].right.tenant &&
			    !limits_agree(&k[i].right.limits, &k[i - 1].right.limits)) {
				snprintf(err, errlen, "--api-key-file %s: two lines with one name have different limits",
				         path);
				return -EINVAL;
			}
	return 0;
}

/* Give a key its row.  A name that has limits needs one. */
static int give_row(struct auth *a, struct key *k, const char *name, char *err, size_t errlen)
{
	const struct quota_limits *l = &k->right.limits;
	char made[24];

	if (!a->quotas)
		return 0;
	snprintf(made, sizeof(made), "key-%08llx", (unsigned long long)(k->right.tenant >> 32));
	k->right.quota = quota_row(a->quotas, k->right.tenant, name ? name : made);
	if (k->right.quota || !(l->rpm || l->tpm || l->parallel))
		return 0;
	snprintf(err, errlen, "--api-key-file: more than %d names since the start: no room for the limits of %s",
	         QUOTA_ROWS, name ? name : made);
	return -E2BIG;
}

static int read_file(struct auth *a, struct key **list, size_t *n, char *err, size_t errlen)
{
	const char *path = a->cfg->api_key_file;
	FILE *f = fopen(path, "re");
	char line[LINE_MAX_], why[160], *key, *save;
	struct words words;
	int number = 0, r = 0;

	if (!f) {
		r = -errno;
		snprintf(err, errlen, "--api-key-file %s cannot be read: %s", path, strerror(-r));
		return r;
	}
	while (!r && fgets(line, sizeof(line), f)) {
		number++;
		if (!strchr(line, '\n') && !feof(f)) {
			snprintf(err, errlen, "--api-key-file %s, line %d: it is longer than %d bytes", path,
			         number, LINE_MAX_ - 2);
			r = -EINVAL;
			break;
		}
		key = strtok_r(line, " \t\r\n", &save);
		if (!key || key[0] == '#')
			continue;
		r = read_words(&save, a->cfg, &words, why, sizeof(why));
		if (r < 0) {
			snprintf(err, errlen, "--api-key-file %s, line %d: %s", path, number, why);
			break;
		}
		r = add(list, n, key, &words);
		if (!r)
			r = give_row(a, *list + *n - 1, words.name, err, errlen);
		else if (r == -E2BIG)
			snprintf(err, errlen, "--api-key-file %s has more than %d keys", path, KEYS_MAX);
		else
			snprintf(err, errlen, "--api-key-file %s: there is no memory for its keys", path);
	}
	if (!r && ferror(f)) {
		r = -EIO;
		snprintf(err, errlen, "--api-key-file %s cannot be read to its end", path);
	}
	OPENSSL_cleanse(line, sizeof(line));
	fclose(f);
	return r;
}

int auth_create(struct auth **out, const struct config *c, struct quota_table *quotas, char *err,
                size_t errlen)
{
	struct auth *a = calloc(1, sizeof(*a));
	int r = a ? 0 : -ENOMEM;

	*out = a;
	if (!a)
		return r;
	a->cfg = c;
	a->quotas = quotas;
	for (int i = 0; !r && i < c->n_api_keys; i++)
		if (c->api_key[i][0]) {
			r = add(&a->key, &a->n, c->api_key[i], &(struct words){ .name = NULL });
			if (!r)
				r = give_row(a, a->key + a->n - 1, NULL, err, errlen);
		}
	a->fixed = a->n;
	if (a->n)
		qsort(a->key, a->n, sizeof(*a->key), by_sum);
	if (r < 0)
		snprintf(err, errlen, "--api-key: there is no memory for the keys");
	else if (c->api_key_file)
		r = auth_reload(a, err, errlen);
	if (r < 0) {
		auth_free(a);
		*out = NULL;
	}
	return r;
}

int auth_reload(struct auth *a, char *err, size_t errlen)
{
	struct key *list = NULL;
	size_t n = a->fixed, room = 1;
	int r;

	if (!a->cfg->api_key_file)
		return 0;
	while (room < n)
		room *= 2;
	list = malloc(room * sizeof(*list));
	if (!list) {
		snprintf(err, errlen, "--api-key-file %s: there is no memory for its keys", a->cfg->api_key_file);
		return -ENOMEM;
	}
	if (n)
		memcpy(list, a->key, n * sizeof(*list));
	r = read_file(a, &list, &n, err, errlen);
	if (!r)
		r = join(list + a->fixed, n - a->fixed, a->cfg->api_key_file, err, errlen);
	if (!r && !n) {
		snprintf(err, errlen, "--api-key-file %s has no key", a->cfg->api_key_file);
		r = -EINVAL;
	}
	if (r < 0) {
		free(list);
		return r;
	}
	qsort(list + a->fixed, n - a->fixed, sizeof(*list), by_sum);
	free(a->key);
	a->key = list;
	a->n = n;
	return 0;
}

void auth_free(struct auth *a)
{
	if (a)
		free(a->key);
	free(a);
}

bool auth_needed(const struct auth *a) { return a->n > 0; }

/* The text after "Bearer ".  Empty if there is none, or for another scheme, which may be for a proxy. */
static struct http_str bearer(const struct http_request *r)
{
	const struct http_str *h = http_header(r, "authorization");
	struct http_str s = h ? *h : (struct http_str){ "", 0 };

	if (s.n < 7 || !http_is_ci((struct http_str){ s.s, 7 }, "bearer "))
		return (struct http_str){ "", 0 };
	for (s.s += 7, s.n -= 7; s.n && *s.s == ' '; s.s++, s.n--)
		;
	return s;
}

bool auth_shows(const struct http_request *r, const char *key)
{
	const struct http_str *x = http_header(r, "x-api-key");
	struct http_str given = bearer(r);
	uint8_t sum[32], right[32];

	if (!given.n && x)
		given = *x;
	sha256(given.s, given.n, sum);
	sha256(key, strlen(key), right);
	return given.n && !CRYPTO_memcmp(sum, right, sizeof(sum));
}

bool auth_check(const struct auth *a, const struct http_request *r, struct auth_right *right)
{
	const struct http_str *x = http_header(r, "x-api-key");
	struct http_str given = bearer(r);
	uint8_t sum[32], other[32];
	const struct key *k;

	*right = (struct auth_right){ 0 };
	if (!a->n)
		return true;
	if (!given.n && x)
		given = *x;
	sha256(given.s, given.n, sum);
	if (x && x->n)                        /* two different keys: it is unclear whose request this is */
		sha256(x->s, x->n, other);
	else
		memcpy(other, sum, sizeof(other));
	k = find(a->key + a->fixed, a->n - a->fixed, sum);
	if (!k)
		k = find(a->key, a->fixed, sum);
	if (k)
		*right = k->right;
	return k && given.n && !CRYPTO_memcmp(sum, other, sizeof(sum));
}
