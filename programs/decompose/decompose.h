/* Structs and functions that phases.c, findings.c, showing.c and decompose.c share. */
#ifndef DECOMPOSE_H
#define DECOMPOSE_H
#include "decompose/components.h"
#include "decoder/encoder.h"
#include "decompose/sources.h"
#include "decompose/target.h"
#include "decompose/model.h"
#include "decoder/text_batch.h"

enum { AD_POOL_CI, AD_POOL_BLOCKS, AD_POOL_ADV };
/* What losses are divided by (ad_program_counts). */
enum { AD_COUNT_POSITIONS, AD_COUNT_SITE_POSITIONS, AD_COUNT_WEIGHTS, AD_COUNT_ADV_POSITIONS };
enum { AD_LOSS_FAITHFULNESS, AD_LOSS_STOCHASTIC, AD_LOSS_SPARSITY, AD_LOSS_ADVERSARIAL };
enum { AD_DECOMPOSE_NAME_SIZE = AD_PARAM_NAME_SIZE + 16, AD_BLOCKS_MAX = 64, AD_SITES_MAX = 512 };

typedef char ad_value_name[AD_DECOMPOSE_NAME_SIZE];

/* What a module of this rank has besides its parameters. */
typedef struct ad_decompose_part {
  int is_here;
  size_t first_site, site_count; /* the sites of this module; the modules ci and adv have all sites */
  ad_target target;
  ad_text_batch batch;
  ad_kept_memory *masks; /* memory for two arrays of each of this module's sites: its mask, and how much of the
                          * remainder is used */
} ad_decompose_part;

/* The values that all forward passes of the adversary on the same tape use. */
typedef struct ad_adversary {
  const ad_tape *tape;
  ad_tensor *tokens, *wanted, *importances, *v[AD_SITES_MAX], *u[AD_SITES_MAX];
} ad_adversary;

typedef struct ad_decomposition {
  const ad_decompose_options *options;
  ad_program_setting setting;
  int64_t step;
  ad_site *sites;
  size_t site_count;
  int64_t components; /* number of components of all sites together */
  size_t block_count, module_count;
  ad_decompose_part *parts; /* one for each module */
  ad_encoder importance;
  ad_sources sources;
  ad_adversary adversary;             /* the adversary's values in the last microbatch; valid until their tape is
                                       * reset */
  ad_tape *ascent;                    /* the tape of the adversary's ascent steps; NULL before the first step */
  ad_value_name *importances, *v, *u; /* names of transferred values: the importances of each block, and V and U of
                                       * each site */
  const char **lists; /* lists of names, one after another: the values that each phase receives and sends */
  ad_bridge **bridges;
  size_t bridge_count;
} ad_decomposition;

size_t ad_block_of(size_t module);
size_t ad_module_of_adv(const ad_decomposition *d);
ad_span ad_sites_of_block(const ad_decomposition *d, size_t block);
int64_t ad_components_in(const ad_decomposition *d, size_t first_site, size_t count);

/* Reads a step's batch, or a validation batch, for all modules of this rank. `counted` has the same meaning as in an
 * ad_program_kind's read. */
enum { AD_DECOMPOSE_COUNTS = 4 };
ad_status ad_decompose_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) AD_CHECKED;

/* Returns the adversary's values `from`, entered as constants on tape t. */
ad_adversary ad_adversary_on(const ad_decomposition *d, ad_tape *t, const ad_adversary *from);
/* Returns the target's logits if all sites are replaced by masked components; one mask for each site. */
ad_tensor *ad_decompose_logits(ad_decomposition *d, ad_decompose_part *part, ad_tape *t, ad_tensor *tokens,
                               ad_mask *masks);

/* The functions of the phases; `own` is an ad_decomposition. */
ad_status ad_decompose_give_components(void *own, ad_phase_run *at) AD_CHECKED;
ad_status ad_decompose_give_importances(void *own, ad_phase_run *at) AD_CHECKED;
ad_status ad_decompose_run_block(void *own, ad_phase_run *at) AD_CHECKED;
ad_status ad_decompose_run_adversary(void *own, ad_phase_run *at) AD_CHECKED;
ad_status ad_decompose_climb_after(void *own, ad_phase_run *at) AD_CHECKED;

#endif
