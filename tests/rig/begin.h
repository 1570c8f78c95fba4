/* begin.h - the commands that begin a slot, for tests that call the scheduler themselves. */
#ifndef BEGIN_H
#define BEGIN_H

#include <assert.h>
#include <string.h>

#include "core/sched/sched.h"
#include "kernels/null/null.h"

/* Put into q the commands that `as` stands for: sampling, then each list that is not empty.  The lists
 * begin with kind `first` and wrap around.  Valid until the next call. */
static void begin(struct sched_request *q, const struct sr_null_request *as, int first)
{
	static struct sched_cmd cmd[SCHED_CMDS];
	static uint32_t word[1 << 17];

	q->cmd = cmd;
	q->words = word;
	q->n_words = (int32_t)(sizeof(as->sampling) / sizeof(word[0]));
	memcpy(word, &as->sampling, sizeof(as->sampling));
	cmd[0] = (struct sched_cmd){ SR_CMD_BEGIN, 0, q->n_words };
	q->n_cmds = 1;
	q->min_position = as->sampling.min_position;
	q->n_stop = as->n_list[SR_LIST_STOP];
	for (int k = 0; k < 4; k++) {
		int32_t kind = (first + k) % 4, n = as->n_list[kind];

		if (kind == SR_LIST_STOP)
			q->stop = q->n_words;
		if (!n)
			continue;
		assert(n <= (int32_t)(sizeof(word) / sizeof(word[0])) - q->n_words);
		memcpy(word + q->n_words, as->list[kind], (size_t)n * sizeof(word[0]));
		cmd[q->n_cmds++] = (struct sched_cmd){ SR_CMD_LIST, kind, n };
		q->n_words += n;
	}
}

#endif
