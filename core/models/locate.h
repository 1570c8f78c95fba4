/* locate.h - what a MODEL on the command line is: a file, a directory, or a Hugging Face id
 * in the local cache.  Nothing is ever downloaded.
 *
 *	./x.gguf, /models/x.gguf        a GGUF file
 *	/models/x                       a Hugging Face directory (config.json in it)
 *	org/name                        $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub:
 *	                                models--org--name/snapshots/<refs/main>
 *	org/name:Q4_K_M                 the GGUF file there whose name ends in Q4_K_M, or its first part
 *	(none)                          the default model, in
 *	                                ${XDG_CACHE_HOME:-~/.cache}/slipring/models
 */
#ifndef LOCATE_H
#define LOCATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOCATE_DEFAULT "SmolLM2-135M-Instruct.Q4_1.gguf"

struct located {
	char path[4096];              /* of the file or directory */
	char name[256];               /* name for users: the id or path as given, else the
	                                 default's file name without .gguf */
	bool gguf;                    /* else a Hugging Face directory */
};

/* 0, or -errno and one sentence in err that names the command to download the model. */
int locate_model(struct located *out, const char *model, char *err, size_t errlen);

/* The directory of a downloaded repository: HUB/models--org--name.  false: nothing says where the hub's are, or
 * n bytes are too few for it and for what is below. */
bool locate_repo(char *out, size_t n, const char *id);

/* Is s "name" or "org/name", in the characters that a repository may have? */
bool locate_is_id(const char *s);

/* The length of a GGUF file's name (without directories) before ".gguf", and before "-00002-of-00003" too.
 * *part: the number of the part, 0 = the file is whole.  0: it is no GGUF file. */
size_t locate_stem(const char *name, int32_t *part);

/* Does the name of a GGUF file end in the quantization `quant` (letters of any case), before ".gguf" or a part's
 * "-00001-of-00003.gguf"? */
bool locate_quant(const char *file, const char *quant);

/* SHA-256 of the vocabulary, by which client and daemon check that they mean the same ids.  It
 * covers the raw bytes of tokenizer.ggml.tokens in a GGUF, or of tokenizer.json in a directory (no
 * bytes if there is none). */
int locate_vocab_hash(const struct located *m, uint8_t out[32], char *err, size_t errlen);

#endif
