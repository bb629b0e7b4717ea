/* The table of seams. */
#include "base/seams.h"

ad_seam_slot ad_seams[AD_SEAM_COUNT];
