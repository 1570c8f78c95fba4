/* ring.pml - one ring of shmring/ring.h, both sides of which may sleep.
 *
 * Claims: nobody sleeps for ever on a record that is there or on room that there is (Spin: no
 * invalid end state); each record is taken once, in order, with its own bytes; nothing is put
 * into a place that has not been left.
 *
 * Memory.  Every shared word X is two variables: X_b as its writer sees it, X_m as the other
 * side does.  A store goes to X_b; the process memory() carries it over at any later time, and
 * words of one side in any order.  That is weaker than the store buffers of x86 (which are
 * FIFO), and what relaxed stores of C11 allow.  A sequentially consistent fence waits until
 * one's own words are over.  Loads are in order; what a late load could see is tried by NO_R2.
 *
 * Names are those of ring.h: mine, left, told, room_at, wake_at, blocker, passed; the labels
 * R1, R2, F1, F2 are its labels.  A seq is i + 1 here, and 0 is memory never written.
 *
 * Broken variants, each of which must be found out (tests/spin/run.sh):
 *	NO_F1  the sleeper looks before its ask is visible
 *	NO_F2  the mover reads the ask before its records are visible
 *	NO_R1  a seq may be seen before the bytes of its record
 *	NO_R2  a place is given back before it was copied
 *	EXACT  a signal only if the last index passed is the one asked for
 *	DRAIN  the socket is emptied between looking and sleeping
 */
#define CAP   2
#define TOTAL 6

byte pay_b[CAP], pay_m[CAP];      /* producer: the bytes of a record, */
byte seq_b[CAP], seq_m[CAP];      /*  and its first word */
byte room_b, room_m;              /* producer: sr_ring_prod.room_at */
byte head_b, head_m;              /* consumer: sr_ring_cons.head */
byte wake_b, wake_m;              /* consumer: sr_ring_cons.wake_at */
byte taken;                       /* what the consumer has had: for the claims */

chan to_cons = [1] of { bit };    /* the socket, each way: one unread byte is enough */
chan to_prod = [1] of { bit };

#ifdef NO_R1
#define R1(k) true
#else
#define R1(k) (pay_m[k] == pay_b[k])
#endif
#ifdef EXACT
#define PASSED(at, told, upto) ((at) + 1 == (upto))
#else
#define PASSED(at, told, upto) ((at) >= (told) && (at) < (upto)) /* sr_ring_passed */
#endif

#define PROD_SEEN (seq_m[0] == seq_b[0] && seq_m[1] == seq_b[1] && room_m == room_b)
#define CONS_SEEN (head_m == head_b && wake_m == wake_b)

inline fence_f1(seen) {
#ifndef NO_F1
	seen
#else
	skip
#endif
}
inline fence_f2(seen) {
#ifndef NO_F2
	seen
#else
	skip
#endif
}

/* wire.h: sr_signal.  EAGAIN is success. */
inline signal(socket) { if :: nfull(socket) -> socket!1 :: full(socket) -> skip fi }
/* wire.h: sr_drain */
inline drain(socket) { if :: nempty(socket) -> socket?_ :: empty(socket) -> skip fi }

/* Stores become visible, each in its own time. */
active proctype memory()
{
end:	do
	:: pay_m[0] != pay_b[0] -> pay_m[0] = pay_b[0]
	:: pay_m[1] != pay_b[1] -> pay_m[1] = pay_b[1]
	:: seq_m[0] != seq_b[0] && R1(0) -> seq_m[0] = seq_b[0]
	:: seq_m[1] != seq_b[1] && R1(1) -> seq_m[1] = seq_b[1]
	:: room_m != room_b -> room_m = room_b
	:: head_m != head_b -> head_m = head_b
	:: wake_m != wake_b -> wake_m = wake_b
	od
}

/* sr_ring_put: the bytes, then the seq with release (R1) */
inline put() {
	assert(mine - taken < CAP);          /* the place has been left: R2 -> A2 */
	pay_b[mine % CAP] = mine + 1;
	seq_b[mine % CAP] = mine + 1;
	mine++
}

/* sr_ring_look: a true peer's head is never wild */
inline look() {
	atomic { assert(head_m >= left && head_m <= mine); left = head_m }
}

/* F2, then sr_ring_wanted; clients_flush() and client.c: wake() */
inline wake_consumer() {
	fence_f2(PROD_SEEN);
	if :: PASSED(wake_m, told, mine) -> signal(to_cons) :: else fi;
	told = mine
}

/* sr_ring_arm_room(sr_ring_blocker(need)); client.c: sr_arm(ROOM), host.c: host_arm */
inline sleep_for_room() {
#ifndef DRAIN
	drain(to_prod);
#endif
	room_b = mine + need - CAP - 1;
	fence_f1(PROD_SEEN);
	look();
	if
	:: CAP - (mine - left) >= need       /* it came meanwhile: stay awake */
	:: else ->
#ifdef DRAIN
		drain(to_prod);
#endif
		nempty(to_prod)              /* poll() */
	fi
}

active proctype producer()
{
	byte mine, left, told, need;

	do
	:: mine == TOTAL -> wake_consumer(); break
	:: mine < TOTAL ->
		if                           /* a token may take several records, all or none */
		:: need = 1
		:: mine + 2 <= TOTAL -> need = 2
		fi;
		if :: CAP - (mine - left) < need -> look() :: else fi; /* sr_ring_reserve */
		if
		:: CAP - (mine - left) >= need ->
			put();
			if :: need == 2 -> put() :: else fi;
			if                   /* one fence for a turn, whatever was put in it */
			:: wake_consumer()
			:: mine < TOTAL
			fi
		:: else -> wake_consumer(); sleep_for_room()
		fi
	od
}

#define READY (seq_m[mine % CAP] == mine + 1)        /* sr_ring_ready, A1 */

/* sr_ring_take: the copy */
inline take() {
#ifdef NO_R2
	mine++;
	head_b = mine;
	left = mine;
	taken = mine;
	assert(pay_m[(mine - 1) % CAP] == mine)
#else
	assert(pay_m[mine % CAP] == mine + 1);
	mine++
#endif
}

/* client.c: sr_arm(TOKENS), host.c: host_arm, host_ready */
inline sleep_for_record() {
#ifndef DRAIN
	drain(to_cons);
#endif
	wake_b = mine;
	fence_f1(CONS_SEEN);
	if
	:: READY                             /* it came meanwhile: stay awake */
	:: else ->
#ifdef DRAIN
		drain(to_cons);
#endif
		nempty(to_cons)
	fi
}

active proctype consumer()
{
	byte mine, left, told;

	do
	:: left == TOTAL -> break
	:: else ->
		do
		:: READY -> assert(mine - left < CAP); take()
		:: break
		od;
		atomic { left = mine; taken = mine; head_b = mine } /* sr_ring_done, R2 */
		fence_f2(CONS_SEEN);
		if :: PASSED(room_m, told, left) -> signal(to_prod) :: else fi; /* sr_ring_freed */
		told = left;
		if
		:: true                      /* polls */
		:: left < TOTAL -> sleep_for_record()
		fi
	od
}
