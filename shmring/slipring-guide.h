/* slipring-guide.h - what a guide may say of the next tokens of an answer: the words that the wire and
 * libslipring-text share. */
#ifndef SLIPRING_GUIDE_H
#define SLIPRING_GUIDE_H

#define SR_GUIDE_IDS 12              /* most ids of one guide record */
#define SR_GUIDE_RUN 64              /* most ids of SR_GUIDE_IS: known ahead of the tokens already there */

enum sr_guide_kind {
	SR_GUIDE_BITS,               /* one bit per id, 32 to a word: an id whose bit is 0 may not be drawn */
	SR_GUIDE_ONLY,               /* one of id[n] */
	SR_GUIDE_IS,                 /* the next n tokens are id[n]: they are not drawn */
	SR_GUIDE_FREE,               /* n = 0: any id, once.  Else any ids, without further guides, up to and
	                              * with the first of id[n] */
};

#endif
