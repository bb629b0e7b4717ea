/* The layer of experts (addend/experts.h), and the text by which known bugs recognise the call sites of a router. */
#ifndef NN_EXPERTS_H
#define NN_EXPERTS_H
#include "addend/experts.h"

/* Call sites contain this text if the scores, or the router, become each rank's own value (V) there. The backward of
 * these calls sums the router's gradient over tp. Known bugs look for this text. */
#define AD_SCORES_BECOME_OWN "the router's scores"

#endif
