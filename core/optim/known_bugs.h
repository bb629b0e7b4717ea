/* The list of known bugs of updates. `addend check --mutate` installs them one by one, to see that its checks kill
 * them. They use only the optimizer's record (record.h), so they apply to every optimizer. */
#ifndef OPTIM_KNOWN_BUGS_H
#define OPTIM_KNOWN_BUGS_H
#include "base/internal.h"
#include "base/known_bugs.h"

AD_INTERNAL const ad_known_bug *ad_optim_known_bugs(size_t *count);

#endif
