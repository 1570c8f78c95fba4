/* text.h - the inside of struct sr_text, for the files of this room. */
#ifndef TEXT_H
#define TEXT_H

#include "added.h"
#include "bpe.h"
#include "pretokenize.h"
#include "slipring-text.h"
#include "template.h"
#include "vocab.h"

#define TEXT_EDGE 4                  /* ids that special tokens may put at either end */

struct sr_text {
	struct sr_text_info info;
	struct vocab vocab;
	struct bpe bpe;
	struct pre pre;
	bool nfc;
	struct added before;         /* found in the text as it came, */
	struct added after;          /* and in what the normalizer made of it */
	int32_t prefix[TEXT_EDGE], suffix[TEXT_EDGE];
	int n_prefix, n_suffix;
	struct chat_template {
		char *source;        /* or NULL */
		struct template *compiled;   /* or NULL */
		char error[256];     /* why it is not */
	} chat, with_tools;          /* with_tools: the one named tool_use, if there is one */
	char pre_name[64];
};

/* From a GGUF's metadata, or from a directory's tokenizer.json and the files beside it.  Fill
 * all but what is compiled and vocab_hash. */
int open_gguf(struct sr_text *t, const char *path, char *err, size_t errlen);
int open_json(struct sr_text *t, const char *dir, char *err, size_t errlen);

/* Add one id to those that end an answer; the same again, -1 and too many are ignored. */
void text_add_stop(struct sr_text *t, int32_t id);

#endif
