/* A decoder of text whose weights are constants. Its products with matrices can be observed and replaced. */
#ifndef PROGRAM_TARGET_H
#define PROGRAM_TARGET_H
#include "gpt/gpt.h"
#include "decoder/mlp_branch.h"

/* A product x W of the decoder, with W [in, out]. */
typedef struct ad_site {
  char name[AD_PARAM_NAME_SIZE]; /* the matrix's name */
  size_t weight;                 /* index of the matrix among the parameters */
  int64_t in, out, components;
} ad_site;

/* The target on the tapes of one module. */
typedef struct ad_target {
  const ad_gpt_options *options;
  ad_decoder decoder;
  ad_mlp_branch mlp;
  ad_declarations params; /* the decoder's parameters, replicated on the module's mesh */
  ad_stand_in stand_in;
  const ad_site *sites; /* borrowed */
  size_t site_count;
  ad_array *arrays; /* the full parameters in f64; without data before ad_target_open */
  double *wide;     /* all weights in f64, one after another; then the same weights in f32 and in bf16, for tapes of
                     * these dtypes */
  float *narrow;
  uint16_t *half; /* the weights in bf16 */
  /* Called for each site's product x W in a forward pass; returns the value to use in its place. If `visit` is NULL or
   * returns NULL, x W is used. */
  ad_tensor *(*visit)(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w);
  void *own;
} ad_target;

/* Lists, in order, all matrices inside the decoder's blocks that multiply tokens. The caller releases *out. */
ad_status ad_target_list(const ad_gpt_options *options, const ad_mesh *mesh, ad_site **out, size_t *count) AD_CHECKED;
/* Checks that the file has every tensor of the target, in its shape and with finite values, and no other tensor. */
ad_status ad_target_check_file(const ad_gpt_options *options, const char *path) AD_CHECKED;
/* Creates the target without its weights. Borrows options, mesh and sites. */
ad_status ad_target_create(ad_target *target, const ad_gpt_options *options, const ad_mesh *mesh, const ad_site *sites,
                           size_t site_count) AD_CHECKED;
void ad_target_release(ad_target *target);
size_t ad_target_bytes(const ad_target *target); /* returns the bytes of the weights once they are open */
/* Reads the weights from the file `path`. If it is NULL, draws the weights from the seed as gpt does. */
ad_status ad_target_open(ad_target *target, const char *path, uint64_t seed, int64_t rank) AD_CHECKED;
/* Returns the parameter with this index and writes its name (if size is not 0). Returns NULL after the last. */
const ad_array *ad_target_array(const ad_target *target, size_t index, char *name, size_t size);
/* Returns the weights of a site in f64; call it after ad_target_open. */
const double *ad_target_weight(const ad_target *target, size_t site);
/* Returns the weights of a site as a constant of the tape, in the tape's wide dtype. */
ad_tensor *ad_target_constant(const ad_target *target, ad_tape *t, size_t site);
/* Writes a few words that identify the opened weights, for checkpoints. Returns "target.weights", the recipe key of the
 * weights. */
const char *ad_target_content(const ad_target *target, char *buffer, size_t size);
/* Computes logits [batch, seq, 256] from tokens [batch, seq]; for `visit` see the member of ad_target. */
ad_tensor *ad_target_logits(ad_target *target, ad_tape *t, ad_tensor *tokens,
                            ad_tensor *(*visit)(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w),
                            void *own);

#endif
