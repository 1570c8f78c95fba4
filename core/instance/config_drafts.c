/* config_drafts.c - --speculative-config: vLLM's object, of which the method ngram is here.  JSON is YAML, too, so
 * libyaml reads it. */
#include "config_drafts.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "refuse.h"

#define MOST_GUESSES 16      /* COUNTERS_DRAFT */
#define MOST_LOOKUP  32      /* SCHED_DRAFT_MATCH */
#define SAYS         "--speculative-config: "

struct drafts { bool ngram; int n, least, longest; }; /* 0: not given */

static int read_number(const char *name, const char *value, int most, int *out, char *err, size_t errlen)
{
	char *end;
	long n = strtol(value, &end, 10);

	if (end == value || *end || n < 1 || n > most)
		return refuse(-EINVAL, err, errlen, SAYS "%s is %.40s; 1 to %d are allowed", name, value, most);
	*out = (int)n;
	return 0;
}

static int read_method(struct drafts *d, const char *name, const char *value, char *err, size_t errlen)
{
	d->ngram = strcmp(value, "ngram") == 0 || (strcmp(name, "model") == 0 && strcmp(value, "[ngram]") == 0);
	if (!d->ngram)
		return refuse(-EINVAL, err, errlen, SAYS "%s %.60s is not supported yet; the method \"ngram\" is", name, value);
	return 0;
}

static int read_member(struct drafts *d, const char *name, const char *value, char *err, size_t errlen)
{
	if (strcmp(name, "method") == 0 || strcmp(name, "model") == 0)
		return read_method(d, name, value, err, errlen);
	if (strcmp(name, "num_speculative_tokens") == 0)
		return read_number(name, value, MOST_GUESSES, &d->n, err, errlen);
	if (strcmp(name, "prompt_lookup_max") == 0)
		return read_number(name, value, MOST_LOOKUP, &d->longest, err, errlen);
	if (strcmp(name, "prompt_lookup_min") == 0)
		return read_number(name, value, MOST_LOOKUP, &d->least, err, errlen);
	return refuse(-EINVAL, err, errlen, SAYS "%.60s is not supported; method, num_speculative_tokens, prompt_lookup_max "
		"and prompt_lookup_min are", name);
}

static int read_document(struct drafts *d, yaml_document_t *doc, char *err, size_t errlen)
{
	const yaml_node_t *root = yaml_document_get_root_node(doc);

	if (!root || root->type != YAML_MAPPING_NODE)
		return refuse(-EINVAL, err, errlen, SAYS "a JSON object is expected, such as {\"method\":\"ngram\","
			"\"num_speculative_tokens\":8}");
	for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
		const yaml_node_t *key = yaml_document_get_node(doc, p->key), *value = yaml_document_get_node(doc, p->value);
		int rc;

		if (key->type != YAML_SCALAR_NODE || value->type != YAML_SCALAR_NODE)
			return refuse(-EINVAL, err, errlen, SAYS "each member is a name and a number or a word");
		rc = read_member(d, (const char *)key->data.scalar.value, (const char *)value->data.scalar.value, err, errlen);
		if (rc)
			return rc;
	}
	return 0;
}

static int read_object(struct drafts *d, const char *text, char *err, size_t errlen)
{
	yaml_parser_t parser;
	yaml_document_t doc;
	int rc;

	if (!yaml_parser_initialize(&parser))
		return refuse(-ENOMEM, err, errlen, SAYS "no memory to read it");
	yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
	if (yaml_parser_load(&parser, &doc)) {
		rc = read_document(d, &doc, err, errlen);
		yaml_document_delete(&doc);
	} else {
		rc = refuse(-EINVAL, err, errlen, SAYS "%.200s is no JSON object", text);
	}
	yaml_parser_delete(&parser);
	return rc;
}

/* "name=value" */
static int read_part(struct drafts *d, const char *text, char *err, size_t errlen)
{
	const char *is = strchr(text, '=');
	char name[64];

	if (!is || is - text >= (ptrdiff_t)sizeof(name))
		return refuse(-EINVAL, err, errlen, SAYS "%.60s is not supported", text);
	memcpy(name, text, (size_t)(is - text));
	name[is - text] = 0;
	return read_member(d, name, is + 1, err, errlen);
}

int config_drafts(struct config *c, char *err, size_t errlen)
{
	struct drafts d = { 0 };
	int rc = 0;

	for (int i = 0; i < c->n_speculative && !rc; i++) {
		const char *text = c->speculative[i] + strspn(c->speculative[i], " \t\n");

		rc = strcmp(text, "None") == 0 ? 0 : *text == '{' ? read_object(&d, text, err, errlen)
		                                                  : read_part(&d, text, err, errlen);
	}
	if (rc || (!d.ngram && !d.n && !d.least && !d.longest))
		return rc;
	if (!d.ngram)
		return refuse(-EINVAL, err, errlen, SAYS "the method is missing; \"ngram\" is supported");
	if (!d.n)
		return refuse(-EINVAL, err, errlen, SAYS "num_speculative_tokens is missing: the most guesses for a step");
	if (!d.least && !d.longest)
		d.least = d.longest = 5;        /* as in vLLM */
	d.least = d.least ? d.least : d.longest;
	d.longest = d.longest ? d.longest : d.least;
	if (d.least > d.longest)
		return refuse(-EINVAL, err, errlen, SAYS "prompt_lookup_min=%d must be <= prompt_lookup_max=%d", d.least, d.longest);
	c->draft_most = d.n;
	c->draft_least = d.least;
	c->draft_longest = d.longest;
	return 0;
}
