/* config_models.c - --models FILE: several models behind one address, a line each.
 *
 *	# comment
 *	NAME MODEL [flags of slipring serve]
 *
 * NAME is the instance.  The words of a line follow those of the command line, so they win; words may be
 * quoted with ' or ".  Without --served-model-name in its line a model is served as NAME.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "refuse.h"

#define FILE_MOST  65536              /* bytes */
#define WORDS_MOST 256                /* on the command line and on a line of the file together */

/* Cut the next word out of the line, in place; NULL: there is none.  *bad: a quote is not closed. */
static char *next_word(char **line, bool *bad)
{
	char *from = *line + strspn(*line, " \t\r"), *to = from, *s = from, quote = 0;

	if (!*from || *from == '#')
		return NULL;
	for (; *s && (quote || !isspace((unsigned char)*s)); s++) {
		if (quote ? *s == quote : *s == '"' || *s == '\'')
			quote = quote ? 0 : *s;
		else
			*to++ = *s;
	}
	*bad = quote;
	*line = *s ? s + 1 : s;
	*to = 0;
	return from;
}

static int add_line(struct config_models *m, char *line, int number, const char *path, char *err,
                    size_t errlen)
{
	struct config_words *w = &m->model[m->n];
	bool bad = false, named = false;
	char *word, dir[4096];

	word = next_word(&line, &bad);
	if (!word)
		return 0;
	if (m->n == CONFIG_LIST)
		return refuse(-EINVAL, err, errlen, "%s: line %d: more than %d models", path, number, CONFIG_LIST);
	if (bad || config_run_dir(word, dir, sizeof(dir)) == -EINVAL)
		return refuse(-EINVAL, err, errlen, "%s: line %d: a line begins with the model's instance, a name of "
		              "letters, digits, - _ .", path, number);
	for (int i = 0; i < m->n; i++)
		if (!strcmp(m->model[i].name, word))
			return refuse(-EINVAL, err, errlen, "%s: line %d: %s is there twice", path, number, word);
	w->name = word;
	w->argv = malloc((WORDS_MOST + 1) * sizeof(*w->argv));
	if (!w->argv)
		return refuse(-ENOMEM, err, errlen, "no memory for %s", path);
	m->n++;
	if (m->argc + 4 >= WORDS_MOST)
		return refuse(-EINVAL, err, errlen, "the command line has more than %d words", WORDS_MOST - 4);
	memcpy(w->argv, m->argv, (size_t)m->argc * sizeof(*w->argv));
	w->argc = m->argc;
	w->argv[w->argc++] = m->flag_instance;
	w->argv[w->argc++] = word;
	while ((word = next_word(&line, &bad))) {
		named |= !strncmp(word, "--served-model-name", 19) || !strncmp(word, "--served_model_name", 19);
		if (w->argc + 2 >= WORDS_MOST)
			return refuse(-EINVAL, err, errlen, "%s: line %d: more than %d words", path, number, WORDS_MOST);
		w->argv[w->argc++] = word;
	}
	if (bad)
		return refuse(-EINVAL, err, errlen, "%s: line %d: a quote is not closed", path, number);
	if (!named) {
		w->argv[w->argc++] = m->flag_served;
		w->argv[w->argc++] = w->name;
	}
	w->argv[w->argc] = NULL;
	return 0;
}

int config_models_read(struct config_models *m, const char *path, int argc, char **argv, char *err,
                       size_t errlen)
{
	FILE *f = fopen(path, "re");
	char *line, *next;
	size_t n;
	int rc = 0;

	*m = (struct config_models){ .argc = argc, .argv = argv, .flag_instance = "--instance",
	                             .flag_served = "--served-model-name", .text = malloc(FILE_MOST) };
	if (!f || !m->text) {
		rc = refuse(f ? -ENOMEM : -errno, err, errlen, "--models %s: %s", path, strerror(f ? ENOMEM : errno));
		if (f)
			fclose(f);
		return rc;
	}
	n = fread(m->text, 1, FILE_MOST, f);
	fclose(f);
	if (n == FILE_MOST || memchr(m->text, 0, n))
		return refuse(-EINVAL, err, errlen, "--models %s: is no text, or longer than %d bytes", path,
		              FILE_MOST - 1);
	m->text[n] = 0;
	line = m->text;
	for (int number = 1; line && !rc; number++, line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = 0;
		rc = add_line(m, line, number, path, err, errlen);
	}
	if (!rc && !m->n)
		rc = refuse(-EINVAL, err, errlen, "--models %s: there is no model in it", path);
	return rc;
}

void config_models_free(struct config_models *m)
{
	for (int i = 0; i < m->n; i++)
		free(m->model[i].argv);
	free(m->text);
	*m = (struct config_models){ 0 };
}
