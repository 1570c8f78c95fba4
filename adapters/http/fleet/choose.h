/* choose.h - the daemon that will answer a request first: a pure function of what is known of each.
 *
 *	t(i) = fresh(i) / rate(i) + k(i) x (n_prompt - cached(i)) / rate(i) + wait(i)
 *
 *	fresh   prompt tokens that the daemon must compute before
 *	k       1 + running / 8: what this prompt computes delays all that decode there, and evicts what is cached
 *	wait    0 while there is a free place in the batch; else the time until enough others have ended
 *
 * The least wins; of equals the one with fewer running, and of those each in turn.  There are no thresholds.
 */
#ifndef CHOOSE_H
#define CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

struct choose_load {
	bool   usable;               /* connected, ready, not silent, and has room */
	double rate;                 /* prompt tokens per second */
	double fresh;                /* prompt tokens of others, not computed yet */
	double running, waiting;     /* sequences */
	double max_seqs;             /* most that run at a time */
	double left_s;               /* mean time that a running sequence still has */
	double cached;               /* tokens of this prompt */
};

/* 0 .. n-1; -1: none is usable.  turn: where to begin among equals. */
int choose_best(const struct choose_load *l, int n, double n_prompt, int turn);

#endif
