/* text.h - the contents of struct sr_text, for the files of this directory. */
#ifndef TEXT_H
#define TEXT_H

#include "added.h"
#include "bpe.h"
#include "chat.h"
#include "pretokenize.h"
#include "slipring-text.h"
#include "adapters/text/guide/trie.h"
#include "adapters/text/template/template.h"
#include "adapters/text/unicode/charsmap.h"
#include "unigram.h"
#include "vocab.h"
#include "wordpiece.h"

#define TEXT_EDGE 4                  /* the most special ids at either end of a text */

struct chat_template {
	char *source;                /* of a model's; or NULL */
	struct template *compiled;   /* or NULL */
	bool parts;                  /* it reads content as a list of parts */
	bool developer;              /* it knows the role developer; else system replaces it */
	char error[256];             /* of a model's: why it is not compiled */
};

/* SentencePiece: is a space put before text?  Where nothing precedes it, or only added tokens. */
enum text_lead { LEAD_NONE, LEAD_ALWAYS, LEAD_UNLESS_SPACE /* that it begins with */ };

/* What becomes of white space before SentencePiece's spaces are put: nothing; it only parts words, each of
 * which begins with a space; or so do runs of spaces, in llama.cpp's way (U+2581 in a text is no space). */
enum text_white { WHITE_KEPT, WHITE_PARTS, WHITE_MERGED };

/* Steps of a normal form, in order. */
enum text_step { STEP_CHARSMAP = 1, STEP_STRIP_LEFT, STEP_STRIP_RIGHT,
                 STEP_RUNS, STEP_RUNS_MARKED };  /* runs of two spaces and more become one space; U+2581 */
enum { STEPS_MAX = 4 };

struct sr_text {
	struct sr_text_info info;
	struct vocab vocab;
	struct bpe bpe;
	struct wordpiece wordpiece;
	struct unigram unigram;
	struct charsmap charsmap;
	enum text_step step[STEPS_MAX];  /* with unigrams: before anything else; 0 ends them */
	enum text_white white;
	struct pre pre;
	bool nfc;
	enum text_lead lead;
	bool lead_once;              /* only at the beginning of a text, not behind added tokens */
	bool strip;                  /* decoding removes the first space of a text */
	struct added before;         /* searched in the original text */
	struct added after;          /* searched in the normalized text */
	int32_t prefix[TEXT_EDGE], suffix[TEXT_EDGE];
	int n_prefix, n_suffix;
	int32_t between[TEXT_EDGE];  /* ids between two texts; before and after both are prefix and suffix */
	int n_between;
	int n_between_first;         /* those of the first text's type; the rest are of the second's */
	bool pair_types;             /* the types differ */
	bool no_pairs;               /* the tokenizer's form of pairs is another */
	struct chat_template chat;
	struct chat_template with_tools; /* the one named tool_use, if any */
	char pre_name[64];
	_Atomic(struct tokens *) tokens;     /* what masks need: made with the first grammar, or NULL */
};

/* Its tokens as a tree (guide/trie.h), made on first use; any thread.  NULL: no memory. */
const struct tokens *text_tokens(const struct sr_text *t);

/* From a GGUF's metadata, or from a directory's tokenizer.json and the files beside it.  They fill
 * all but vocab_hash and the compiled templates. */
int open_gguf(struct sr_text *t, const char *path, char *err, size_t errlen);
int open_json(struct sr_text *t, const char *dir, char *err, size_t errlen);

/* Set up the pieces of a SentencePiece vocabulary, after its merges: as large as is exact.  0, -EINVAL: a
 * byte has no token. */
int text_seal_pieces(struct sr_text *t, char *err, size_t errlen);

/* Cut at spaces before unigrams are looked for, where that changes nothing.  0 or -errno. */
int text_seal_unigram(struct sr_text *t, char *err, size_t errlen);

/* Add one id to those that end an answer; ignores -1, repeated ids, and ids past the 8th. */
void text_add_stop(struct sr_text *t, int32_t id);

/* Compile source into a zeroed *c.  template_free() frees c->compiled. */
int text_compile_chat(struct chat_template *c, const char *source, char *err, size_t errlen);

#endif
