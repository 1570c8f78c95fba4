/* harmony.c - answers of gpt-oss: messages with a head that names a channel and perhaps a recipient.
 *
 *	<|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..
 *	<|channel|>commentary to=functions.F <|constrain|>json<|message|>{..}<|call|>
 *
 * The recipient may stand before the channel, and <|constrain|> may be missing.
 */
#include <string.h>

#include "impl.h"

#define HEAD_LONGEST 512

static bool has(const struct bytes *b, const char *what)
{
	return b->n && memmem(b->p, b->n, what, strlen(what));
}

/* The recipient's name, up to a space or marker. */
static void recipient(struct splitter *s)
{
	static const char to[] = "to=functions.";
	const char *p, *end, *from;

	s->name.n = 0;
	if (!s->word.n || !(p = memmem(s->word.p, s->word.n, to, sizeof(to) - 1)))
		return;
	end = s->word.p + s->word.n;
	for (from = p += sizeof(to) - 1; p < end && !strchr(" \t\r\n<", *p) && *p != CALLS_MARK;)
		p++;
	bytes_add(s, &s->name, from, (size_t)(p - from));
}

static void head_is_whole(struct splitter *s)
{
	recipient(s);
	s->head.n = 0;
	s->keep_head = false;
	s->run = (struct json_run){ 0 };
	s->state = SPLIT_BODY;
	s->fresh = false;
	if (s->name.n && s->name.n <= NAME_MOST && s->o.parse_calls) {
		s->body = CALLS_ARGUMENTS;
		split_announce(s);
	} else {
		s->body = has(&s->word, "analysis") ? CALLS_REASONING : CALLS_CONTENT;
	}
	s->word.n = 0;
}

/* Is there a head at all?  It begins with one of these. */
static bool is_head(const struct splitter *s, bool *part)
{
	static const int m[] = { M_CHANNEL, M_START, M_CONSTRAIN, M_MESSAGE };
	static const char to[] = " to=";
	size_t n;
	const char *p = split_at(s, &n);

	for (int i = 0; i < 4; i++)
		switch (split_find(s, m[i])) {
		case FOUND_YES: return true;
		case FOUND_PART: *part = true; break;
		case FOUND_NO: break;
		}
	if (*part)
		return false;
	n = n < sizeof(to) - 1 ? n : sizeof(to) - 1;
	if (memcmp(p, to, n) && memcmp(p, to + 1, n < 3 ? n : 3))
		return false;
	*part = n < sizeof(to) - 1 && !s->end;
	return !*part;
}

bool split_head(struct splitter *s)
{
	static const int end[] = { M_MESSAGE };
	size_t n, k;
	const char *p = split_at(s, &n);
	bool part = false;
	int which;

	if (!n)
		return false;
	if (!s->word.n && !is_head(s, &part)) {
		if (part)
			return false;
		s->keep_head = false;
		s->head.n = 0;
		s->body = CALLS_CONTENT;
		s->state = SPLIT_BODY;
		return true;
	}
	k = split_room(&s->word, HEAD_LONGEST, split_until(s, end, 1, &which));
	bytes_add(s, &s->word, p, k);
	split_take(s, k);
	if (s->word.n > HEAD_LONGEST) {
		s->body = CALLS_CONTENT;
		s->word.n = 0;
		split_fail(s);
		s->state = SPLIT_BODY;
		return true;
	}
	if (which < 0)
		return false;
	split_take(s, s->c->mark[M_MESSAGE].n);
	head_is_whole(s);
	return true;
}

bool split_body(struct splitter *s)
{
	static const int ends[] = { M_END, M_SENT, M_RETURN, M_START };
	size_t k, n;
	const char *p = split_at(s, &n);
	int which;

	k = split_until(s, ends, 4, &which);
	if (s->body == CALLS_ARGUMENTS)
		json_run(&s->run, p, k);
	split_put(s, (enum calls_part)s->body, p, k);
	split_take(s, k);
	if (which < 0)
		return false;
	if (ends[which] != M_START)
		split_take(s, s->c->mark[ends[which]].n);
	if (s->body == CALLS_ARGUMENTS && !s->run.done)
		s->broken = true;
	s->in_call = false;
	s->word.n = 0;
	s->head.n = 0;
	s->keep_head = true;
	s->state = SPLIT_HEAD;
	return true;
}
