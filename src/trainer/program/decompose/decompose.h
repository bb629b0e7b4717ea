/* What the phases of decompose and its record have in common. */
#ifndef PROGRAM_DECOMPOSE_H
#define PROGRAM_DECOMPOSE_H
#include "program/decompose/components.h"
#include "program/decoder/encoder.h"
#include "program/decompose/sources.h"
#include "program/decompose/target.h"
#include "program/decompose/model.h"
#include "program/decoder/text_batch.h"

enum { AD_POOL_CI, AD_POOL_BLOCKS, AD_POOL_ADV };
enum { AD_LOSS_FAITHFULNESS, AD_LOSS_STOCHASTIC, AD_LOSS_SPARSITY, AD_LOSS_ADVERSARIAL };
enum { AD_DECOMPOSE_NAME_SIZE = AD_PARAM_NAME_SIZE + 16, AD_BLOCKS_MAX = 64, AD_SITES_MAX = 512 };

typedef char ad_value_name[AD_DECOMPOSE_NAME_SIZE];

/* What a module has besides its parameters. */
typedef struct ad_decompose_part {
  int is_here;
  size_t first_site, site_count; /* that it owns; of the others all */
  ad_target target;
  ad_text_batch batch;
  ad_kept_memory *masks; /* of each of its sites two: numbers of masks and of what remains */
} ad_decompose_part;

/* What the adversary's forward passes have in common, on one tape. */
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
  int64_t components; /* of all sites */
  size_t block_count, module_count;
  ad_decompose_part *parts; /* of each module */
  ad_encoder importance;
  ad_sources sources;
  ad_adversary adversary;             /* of the microbatch that ran last, until its tape's reset */
  ad_tape *ascent;                    /* of the adversary's steps up; NULL: there was none yet */
  ad_value_name *importances, *v, *u; /* of blocks; of sites: names of values */
  const char **lists;                 /* needs and gives of the phases, one list after another */
  ad_bridge **bridges;
  size_t bridge_count;
} ad_decomposition;

size_t ad_block_of(size_t module);
size_t ad_module_of_adv(const ad_decomposition *d);
ad_span ad_sites_of_block(const ad_decomposition *d, size_t block);
int64_t ad_components_in(const ad_decomposition *d, size_t first_site, size_t count);

/* Reads a step's batch, or a held-out one, on all modules of this rank; `counted` as ad_program_kind's read has it. */
enum { AD_DECOMPOSE_COUNTS = 4 };
ad_status ad_decompose_read(void *own, int64_t step, ad_held_out held_out, int64_t *const *counted) AD_CHECKED;

/* The adversary's values as constants of another tape. */
ad_adversary ad_adversary_on(const ad_decomposition *d, ad_tape *t, const ad_adversary *from);
/* Logits of the target with all sites masked. */
ad_tensor *ad_decompose_logits(ad_decomposition *d, ad_decompose_part *part, ad_tape *t, ad_tensor *tokens,
                               ad_mask *masks);

/* The phases; `own` is an ad_decomposition. */
ad_status ad_decompose_give_components(void *own, ad_phase_run *at) AD_CHECKED;
ad_status ad_decompose_give_importances(void *own, ad_phase_run *at) AD_CHECKED;
ad_status ad_decompose_run_block(void *own, ad_phase_run *at) AD_CHECKED;
ad_status ad_decompose_run_adversary(void *own, ad_phase_run *at) AD_CHECKED;
ad_status ad_decompose_climb_after(void *own, ad_phase_run *at) AD_CHECKED;

#endif
