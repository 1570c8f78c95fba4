/* restart.pml - a daemon that stops or is killed, and starts again; a client that asks, polls or
 * sleeps, and opens anew (shmring/client.c: alive, sr_poll, sr_wait; docs/wire.md: The end).
 *
 * Each life of the daemon makes memory of its own, so a client of an earlier life keeps the old:
 * words are indexed by life.  In the old memory epoch goes to 0 on an orderly stop; a killed
 * daemon only closes the socket, which the kernel does.
 *
 * Claims: no client waits for ever for a dead daemon; what was put before the end is read before
 * the client is told of the end (no answer counts as lost that is in the ring); an answer is of
 * the life that was asked; each request is in the end answered once.
 *
 * Broken variants that must be found out:
 *	ONE_LOOK  the ring is not looked at again once the end is known
 *	NO_EPOCH  an answer is looked for in the memory of the latest life
 *	DEAF      a sleeper that does not hear the end of file
 */
#define LIVES 2
#define ASKS  2

byte epoch_b[LIVES] = 1, epoch[LIVES] = 1;  /* sr_down.epoch: daemon's view, client's; 0 = over */
byte end_b[LIVES], end[LIVES];              /* ENDs in the token ring: how many were put */
byte asked[LIVES];                          /* requests in the ring */
bool closed[LIVES];                         /* end of file on the socket */
chan bell = [1] of { bit };                 /* daemon to client, this life's */
bool asleep;                                /* the client's ask (wake_at) */
byte life;                                  /* the latest */
bool up = true;
bool done;

/* Stores become visible in order: epoch is stored with release, after the records. */
active proctype memory()
{
endm:	do                                          /* only the latest life has stores under way */
	:: end[life] != end_b[life] -> end[life] = end_b[life]
	:: epoch[life] != epoch_b[life] && end[life] == end_b[life] -> epoch[life] = epoch_b[life]
	od
}

active proctype daemon()
{
	byte answered;

endd:	do
	:: up && asked[life] > answered ->
		answered++;
		end_b[life] = answered;                  /* host_end */
		end[life] == end_b[life];                /* F2 */
		if
		:: asleep && nfull(bell) -> bell!1       /* host_wake */
		:: else
		fi
	:: up && life < LIVES - 1 && !done ->            /* it ends, at any point between requests */
		if
		:: epoch_b[life] = 0                     /* orderly: host_close(stopping) */
		:: skip                                  /* kill -9 */
		fi;
		up = false;
		/* The kernel closes after every store of the process is visible. */
		(end[life] == end_b[life] && epoch[life] == epoch_b[life]);
		closed[life] = true
	:: !up -> atomic { life++; answered = 0; up = true }; /* the service manager */
	od
}

#ifdef NO_EPOCH
#define MINE life
#else
#define MINE here
#endif

active proctype client()
{
	byte here, had, got, n_ask;
	bool over;

	do
	:: n_ask == ASKS -> break
	:: else ->
again:		/* sr_open: whatever life is up now */
		atomic { up -> here = life; had = 0; over = false; asleep = false;
			 if :: nempty(bell) -> bell?_ :: empty(bell) fi }
ask:		if
		:: n_ask == ASKS -> break
		:: else -> asked[here]++             /* sr_submit; it may be dead already */
		fi;
		do
		:: end[MINE] > had ->                /* sr_poll: taken */
			assert(MINE == here);
			had++; got++; n_ask++;
			goto ask
		:: else ->
			/* alive(): the epoch always, the kernel now and then */
			if
			:: epoch[here] == 0 -> over = true
			:: closed[here] -> over = true
			:: epoch[here] != 0 && !closed[here]
			fi;
			if
			:: over ->
#ifndef ONE_LOOK
				if :: end[MINE] > had -> goto more :: else fi;
#endif
				assert(end[here] == had); /* told of the end: nothing is left behind */
				goto again
			:: else
			fi;
			/* polls again, or sleeps: arm, F1, look, sleep */
			if
			:: true
			:: asleep = true;
				if
				:: end[MINE] > had
				:: else ->
#ifdef DEAF
					nempty(bell)
#else
					(nempty(bell) || closed[here])
#endif
				fi;
				asleep = false;
				if :: nempty(bell) -> bell?_ :: empty(bell) fi
			fi;
more:			skip
		od
	od;
	done = true;
	assert(got == ASKS)
}
