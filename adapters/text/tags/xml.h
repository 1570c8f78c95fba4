/* xml.h - what xml.c and literal.c share: the arguments of a call by an object schema, in a notation that is
 * not JSON. */
#ifndef TAGS_XML_H
#define TAGS_XML_H

#include "impl.h"

enum xml_notation { XML_MARKERS, XML_PYTHON, XML_GEMMA };

struct xml_style {
	const char *name;
	const char *key, *key_end;         /* around the name */
	const char *value, *value_end;     /* literals: around a string */
	enum xml_notation notation;
	bool flagged;                      /* key_end has %s: is it a string */
	bool lines;                        /* a line feed at each end of a string is no part of it */
};

struct xml {
	struct tags *t;
	const struct xml_style *style;
	json_t *root;                      /* of references */
	const struct tags_place *at;
	uint32_t blanks;
};

json_t *xml_resolved(const struct xml *x, json_t *s);  /* s, or what it refers to; NULL after an error */
bool xml_only(const struct xml *x, json_t *s, const char *const *known); /* refuses other keywords */
bool xml_required(const json_t *s, const char *key);
uint32_t xml_text(const struct xml *x, json_t *s);     /* of a schema of strings, over their text */
int32_t xml_plain(const struct xml *x, uint32_t e);    /* text that is in e, up to and with the value's end */

/* literal.c: the arguments, without what is around all of them. */
int32_t xml_literals(const struct xml *x, json_t *s);

#endif
