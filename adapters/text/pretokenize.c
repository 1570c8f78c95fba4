/* pretokenize.c - see pretokenize.h.  The expressions are those of the models' own tokenizer.json
 * files, run by PCRE2's JIT.  A match limit, proportional to the length of the text, stops an expression
 * from a hostile file that would run forever.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pretokenize.h"

#define RE_MAX 4096

#define GPT2  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* cl100k and later ones: contractions in either case; `digits` matches the digits of one piece */
#define CL100K(digits) \
	SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define LLAMA3 CL100K("\\p{N}{1,3}")
#define QWEN2  CL100K("\\p{N}")
/* the same, with marks in words */
#define QWEN35 \
	SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES
/* o200k: words are cut where a capital follows a small letter.  `but` comes before each letter, `end` after
 * each word */
#define UPPER(but) "(?:" but "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define LOWER(but) "(?:" but "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define O200K_WORDS(but, end) \
	"[^\\r\\n\\p{L}\\p{N}]?" UPPER(but) "*" LOWER(but) "+" end "|" \
	"[^\\r\\n\\p{L}\\p{N}]?" UPPER(but) "+" LOWER(but) "*" end "|"
#define O200K(end, digits) O200K_WORDS("", end) digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES
#define KIMI \
	"\\p{Han}+|" O200K_WORDS("(?!\\p{Han})", SHORT_FORMS "?") \
	"\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES
#define DIGIT  "\\p{N}"
#define DIGITS "\\p{N}{1,3}"
#define ASIAN  "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DEEPSEEK3 \
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|" \
	" ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define BAILING \
	"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|" \
	"\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define SEED_CODER \
	SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES
#define EXAONE_MOE \
	SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}|" \
	" ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
/* DeepSeek's first models: the cased letters and the Chinese and Korean ones of their own lists */
#define CASED \
	"A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ" \
	"ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ" \
	"Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
#define DEEPSEEK_ASIAN "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK_MARKS \
	"\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"

const char pre_gpt2[] = GPT2;

static const struct family {
	const char *names;           /* separated by spaces */
	const char *re[PRE_STEPS];   /* each cuts the pieces of the one before; NULL after the last */
	bool whole_first, add_bos, nfc;
} families[] = {
	/* smollm: for such a GGUF file the reference, transformers, uses GPT-2's pattern.  Its authors
	 * split off digits first, which differs only if two or more white-space characters precede a
	 * number.  A tokenizer.json that does so is followed. */
	{ "gpt-2 gpt2 default smollm mpt olmo jais phi-2 exaone4 modern-bert trillion granite-docling a.x-4.0 "
	  "gigachat mellum", { GPT2 }, false, false, false },
	{ "starcoder refact command-r codeshell exaone minerva-7b mellum2", { DIGIT, GPT2 },
	  false, false, false },
	{ "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 midm-2.0", { LLAMA3 }, true, true, false },
	{ "dbrx smaug-bpe chatglm-bpe", { LLAMA3 }, false, false, false },
	{ "glm4 glm5", { LLAMA3 }, true, false, false },
	{ "minicpm5", { DIGITS, CL100K("\\p{N}+") }, true, false, false },
	{ "qwen2 deepseek-r1-qwen", { QWEN2 }, false, false, true },
	{ "stablelm2 megrez hunyuan grok-2 solar-open kormo", { QWEN2 }, false, false, false },
	{ "qwen35", { QWEN35 }, false, false, false },
	{ "gpt-4o llama4 kanana2", { O200K(SHORT_FORMS "?", DIGITS) }, true, false, false },
	{ "minimax-m2", { O200K(SHORT_FORMS "?", DIGITS) }, false, false, false },
	{ "tekken", { O200K("", DIGIT) }, true, true, false },
	{ "kimi-k2", { KIMI }, false, false, false },
	{ "deepseek-v3 hunyuan-dense joyai-llm", { DIGITS, ASIAN, DEEPSEEK3 }, false, false, false },
	{ "deepseek-llm", { "[\r\n]", "\\s?[" CASED "]+", DEEPSEEK_MARKS, "\\s+$", DEEPSEEK_ASIAN, "\\p{N}+" },
	  false, false, false },
	{ "deepseek-coder", { "[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_ASIAN, DIGIT },
	  false, false, false },
	{ "falcon", { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]" }, false, false, false },
	{ "bailingmoe bailingmoe2 llada-moe", { BAILING }, false, false, false },
	{ "seed-coder", { SEED_CODER }, false, false, false },
	{ "exaone-moe", { EXAONE_MOE }, false, false, false },
};

/* PCRE2's \s matches U+180E, which is no white space in Oniguruma, nor in Unicode since 6.3: replace \s
 * by the explicit set.  ("\S" inside a class stays as it is.) */
static int spell_spaces(const char *re, size_t n, char *out, size_t cap)
{
	static const char set[] = "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
	                          "\\x{202f}\\x{205f}\\x{3000}";
	bool in_class = false;
	size_t k = 0;

	for (size_t i = 0; i < n; i++) {
		if (k + sizeof(set) + 4 > cap)
			return -EINVAL;
		if (re[i] == '\\' && i + 1 < n) {
			char c = re[++i];

			if (c == 's' && in_class)
				k += (size_t)snprintf(out + k, cap - k, "%s", set);
			else if (c == 's' || (c == 'S' && !in_class))
				k += (size_t)snprintf(out + k, cap - k, "[%s%s]", c == 'S' ? "^" : "", set);
			else {
				out[k++] = '\\';
				out[k++] = c;
			}
			continue;
		}
		if (re[i] == '[')
			in_class = true;
		else if (re[i] == ']')
			in_class = false;
		out[k++] = re[i];
	}
	return (int)k;
}

int pre_add(struct pre *p, const char *re, size_t n, bool literal, bool drop, char *err, size_t errlen)
{
	char spelled[2 * RE_MAX], why[128];
	uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK;
	size_t at;
	int len, rc;
	pcre2_code *code;

	if (p->n == PRE_STEPS) {
		snprintf(err, errlen, "pre_tokenizer has more than %d steps", PRE_STEPS);
		return -ENOTSUP;
	}
	len = n > RE_MAX ? -EINVAL : spell_spaces(re, n, spelled, sizeof(spelled));
	if (len < 0) {
		snprintf(err, errlen, "a pre_tokenizer pattern has %zu bytes; at most %d are allowed", n, RE_MAX);
		return -ENOTSUP;
	}
	if (literal)
		options |= PCRE2_LITERAL;
	else
		options |= PCRE2_UCP;
	code = pcre2_compile((PCRE2_SPTR)(literal ? re : spelled), literal ? n : (size_t)len, options,
	                     &rc, &at, NULL);
	if (!code) {
		pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof(why));
		snprintf(err, errlen, "pre_tokenizer pattern '%.*s': %s at %zu", n > 200 ? 200 : (int)n, re, why, at);
		return -ENOTSUP;
	}
	pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);   /* without a JIT it is interpreted */
	p->step[p->n++] = (struct pre_step){ code, drop };
	return 0;
}

static bool named(const char *names, const char *name, size_t n)
{
	const char *p = names, *end;

	for (; *p; p = *end ? end + 1 : end) {
		end = strchrnul(p, ' ');
		if ((size_t)(end - p) == n && !memcmp(p, name, n))
			return true;
	}
	return false;
}

static const struct family *find_family(const char *name, size_t n)
{
	for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++)
		if (named(families[i].names, name, n))
			return &families[i];
	return NULL;
}

const char *const *pre_expressions(const char *name, size_t n)
{
	const struct family *f = find_family(name, n);

	return f ? f->re : NULL;
}

int pre_named(struct pre *p, const char *name, size_t n, char *err, size_t errlen)
{
	const struct family *f = find_family(name, n);
	int rc = 0;

	if (!f) {
		snprintf(err, errlen, "pre-tokenizer '%.*s' (tokenizer.ggml.pre) is not supported",
		         n > 64 ? 64 : (int)n, name);
		return -ENOTSUP;
	}
	p->whole_first = f->whole_first;
	p->add_bos = f->add_bos;
	p->nfc = f->nfc;
	for (int k = 0; k < PRE_STEPS && f->re[k] && !rc; k++)
		rc = pre_add(p, f->re[k], strlen(f->re[k]), false, false, err, errlen);
	return rc;
}

void pre_free(struct pre *p)
{
	for (int i = 0; i < p->n; i++)
		pcre2_code_free(p->step[i].re);
	p->n = 0;
}

int pre_begin(struct pre_work *w, const struct pre *p, size_t n)
{
	memset(w, 0, sizeof(*w));
	w->context = pcre2_match_context_create(NULL);
	if (!w->context)
		return -ENOMEM;
	pcre2_set_match_limit(w->context, n < 1u << 26 ? 100000 + 16 * (uint32_t)n : UINT32_MAX);
	for (int i = 0; i < p->n; i++) {
		w->data[i] = pcre2_match_data_create(1, NULL);
		if (!w->data[i]) {
			pre_end(w, p);
			return -ENOMEM;
		}
	}
	return 0;
}

void pre_end(struct pre_work *w, const struct pre *p)
{
	for (int i = 0; i < p->n; i++)
		pcre2_match_data_free(w->data[i]);
	pcre2_match_context_free(w->context);
}

static size_t char_len(const char *s)
{
	uint8_t c = (uint8_t)*s;

	return c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

static int match(const struct pre_step *st, struct pre_work *w, pcre2_match_data *data,
                 const char *s, size_t n, size_t at)
{
	int rc = pcre2_match(st->re, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK, data, w->context);

	if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
		rc = pcre2_match(st->re, (PCRE2_SPTR)s, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, w->context);
	return rc;
}

static int cut(const struct pre *p, struct pre_work *w, int step, const char *s, size_t n,
               int (*piece)(void *arg, const char *s, size_t n), void *arg)
{
	const struct pre_step *st = &p->step[step];
	size_t done = 0, at = 0, from, to, *range;
	int rc;

	if (step == p->n)
		return n ? piece(arg, s, n) : 0;
	range = pcre2_get_ovector_pointer(w->data[step]);
	while (at < n) {
		rc = match(st, w, w->data[step], s, n, at);
		if (rc == PCRE2_ERROR_NOMATCH)
			break;
		if (rc < 0)
			return -E2BIG;
		from = range[0];
		to = range[1];
		if (to == from) {        /* an empty match: go on after the next character */
			at = from + (from < n ? char_len(s + from) : 1);
			continue;
		}
		if (from > done && !st->drop) {
			rc = cut(p, w, step + 1, s + done, from - done, piece, arg);
			if (rc)
				return rc;
		}
		rc = cut(p, w, step + 1, s + from, to - from, piece, arg);
		if (rc)
			return rc;
		done = at = to;
	}
	return done < n && !st->drop ? cut(p, w, step + 1, s + done, n - done, piece, arg) : 0;
}

int pre_cut(const struct pre *p, struct pre_work *w, const char *s, size_t n,
            int (*piece)(void *arg, const char *s, size_t n), void *arg)
{
	return cut(p, w, 0, s, n, piece, arg);
}
