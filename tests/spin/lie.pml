/* lie.pml - the daemon's side of a connection (shmring/host.c on ring.h) against a client that
 * may store any value into any word that it can write, at any time, and die between any two
 * instructions.  Beside it an honest neighbour.
 *
 * Such a client needs no process of its own: wherever the daemon loads a word of `up` it may get
 * any value, and it is enough to let it have each of them.  That is exact, whatever the memory
 * model, because the daemon loads each of those words once.
 *
 * Claims: between two sr_ring_done a liar is heard for at most a ring's places; what is promised,
 * put and not left never exceeds the ring, so no place is used twice; requests under way never
 * exceed what was granted; whoever lies or dies is buried exactly once and leaves no request and
 * no promised record; a turn of the loop ends, so that the neighbour is served again and again
 * (Spin: no non-progress cycle).
 *
 * Indices wrap at M as the real ones do at 2^32.
 *
 * Broken variants that must be found out:
 *	TRUST_SEQ   sr_ring_take without its count of places (PEER)
 *	TRUST_HEAD  sr_ring_look without its bounds (PEER)
 *	NO_PROMISE  a row is planned without room for its record
 *	TWICE       a client that is dropped and then dies is buried twice
 *	GREEDY      requests of one client are taken as long as there are any
 */
#define M    8                    /* indices are modulo this */
#define CAP  2                    /* places in either ring, and requests granted */
#define TAKE 4                    /* requests of one client in a turn: clients_config.take */

#define SUB(a, b) (((a) + M - (b)) % M)

bool died;                        /* end of file on the socket, or its pidfd */
bool open = true;
bool lost;                        /* client.gone: to be buried by the next turn */
byte buried;
byte live;                        /* requests under way */
byte promised;                    /* sr_ring.reserved of the token ring */
byte r_mine, r_left;              /* request ring: consumer */
byte t_mine, t_left;              /* token ring: producer */

active proctype liar()
{
	if
	:: died = true
	:: true                       /* silent, and alive for ever */
	fi
}

/* clients_conn.c: conn_lose */
inline lose() { lost = true }

/* clients_conn.c: conn_bury; sched_forget, conn_free */
inline bury() {
	d_step {
		lost = false;
#ifndef TWICE
		open = false;
#endif
		live = 0;
		promised = 0;
		buried++
	}
	assert(buried == 1)
}

/* sr_ring_look: any head may be there */
inline look() {
	select(at : 0 .. M - 1);      /* A2, read once */
	if
#ifndef TRUST_HEAD
	:: SUB(at, t_left) > SUB(t_mine, t_left) -> lose() /* PEER */
#endif
	:: else -> t_left = at
	fi;
	assert(SUB(t_mine, t_left) + promised <= CAP)
}

/* clients.c: take_requests, take_one; a lie costs the connection */
inline take_requests() {
	n = 0;
	do
#ifdef GREEDY
	:: true ->                    /* A1: the seq may be what it must be, */
#else
	:: n < TAKE ->
#endif
		if
#ifndef TRUST_SEQ
		:: SUB(r_mine, r_left) > CAP - 1 -> lose(); break /* PEER */
#endif
		:: else ->
			d_step { r_mine = (r_mine + 1) % M; n = (n + 1) % 8 }
			assert(SUB(r_mine, r_left) <= CAP);
			/* port_reserve: a record for its END, or it is held till then */
			if :: CAP - SUB(t_mine, t_left) - promised < 1 -> look() :: else fi;
			if
			:: lost || CAP - SUB(t_mine, t_left) - promised < 1 -> break
			:: else ->
				if
				:: live < CAP -> d_step { live++; promised++ } /* sched_admit */
				:: t_mine = (t_mine + 1) % M                   /* turn_away */
				:: live == CAP -> break
				fi
			fi;
			if            /* sr_ring_done, now or for several at once */
			:: r_left = r_mine
			:: true
			fi
		fi
	:: break                      /* or anything else */
	od;
	r_left = r_mine
}

/* A row yields a token and maybe an end: core/sched reserves, port_emit puts. */
inline emit() {
	do
	:: live > 0 -> d_step {       /* an END, in the room kept for it */
		t_mine = (t_mine + 1) % M;
		promised--;
		live--
	   }
#ifdef NO_PROMISE
	:: live > 0 ->
#else
	:: live > 0 && CAP - SUB(t_mine, t_left) - promised >= 1 ->
#endif
		t_mine = (t_mine + 1) % M
	:: break
	od;
	assert(SUB(t_mine, t_left) + promised <= CAP && live <= promised)
}

active proctype daemon()
{
	byte n, at;

	do
	:: /* one turn of the loop */
		if :: open && died -> lose() :: else fi;        /* io_poll: on_death, on_socket */
		if :: lost -> bury() :: else fi;
		if :: open -> take_requests() :: else fi;
		if :: open && !lost -> look(); emit() :: else fi;
		assert(open || (live == 0 && promised == 0));
		at = 0;
		n = 0;
progress_neighbour:
		skip                  /* serve() of the next client */
	od
}
