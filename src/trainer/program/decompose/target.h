/* A decoder of text whose weights do not change, and whose products with matrices can be looked into and replaced. */
#ifndef PROGRAM_TARGET_H
#define PROGRAM_TARGET_H
#include "program/gpt/gpt.h"
#include "program/decoder/mlp_branch.h"

/* A product x W of the decoder: W [in, out]. */
typedef struct ad_site {
  char name[AD_PARAM_NAME_SIZE]; /* of the matrix */
  size_t weight;                 /* its number */
  int64_t in, out, components;
} ad_site;

/* The target as the tapes of one module see it. */
typedef struct ad_target {
  const ad_gpt_options *options;
  ad_decoder decoder;
  ad_mlp_branch mlp;
  ad_declarations params; /* replicated on the module's mesh */
  ad_stand_in stand_in;
  const ad_site *sites; /* borrowed */
  size_t site_count;
  ad_array *arrays; /* the parameters, whole, in f64; without data before they are open */
  double *wide;     /* the weights one after another, in every dtype that tapes have */
  float *narrow;
  uint16_t *half; /* bf16 */
  /* What is called for the product of each site, in a forward pass; NULL, or a result of NULL: the product itself. */
  ad_tensor *(*visit)(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w);
  void *own;
} ad_target;

/* All matrices of the decoder that tokens are multiplied with inside its blocks, in order; *out is the caller's. */
ad_status ad_target_list(const ad_gpt_options *options, const ad_mesh *mesh, ad_site **out, size_t *count) AD_CHECKED;
/* Whether the file has every tensor of the target, in its shape and finite, and no other. */
ad_status ad_target_check_file(const ad_gpt_options *options, const char *path) AD_CHECKED;
/* Borrows options, sites and mesh. */
ad_status ad_target_create(ad_target *target, const ad_gpt_options *options, const ad_mesh *mesh, const ad_site *sites,
                           size_t site_count) AD_CHECKED;
void ad_target_release(ad_target *target);
size_t ad_target_bytes(const ad_target *target); /* of the weights once they are open */
/* Its weights, on a rank of the mesh: those of the file, or with `path` NULL drawn from the seed as gpt draws them. */
ad_status ad_target_open(ad_target *target, const char *path, uint64_t seed, int64_t rank) AD_CHECKED;
/* Parameter number `index`, with its name (size 0: not wanted); NULL after the last. */
const ad_array *ad_target_array(const ad_target *target, size_t index, char *name, size_t size);
/* Of a site, in f64, once opened. */
const double *ad_target_weight(const ad_target *target, size_t site);
/* The same as a constant of the tape, in its wide dtype. */
ad_tensor *ad_target_constant(const ad_target *target, ad_tape *t, size_t site);
/* What its weights are, opened, in a few words: of target.weights, for checkpoints. Returns that key. */
const char *ad_target_content(const ad_target *target, char *buffer, size_t size);
/* tokens [batch, seq] -> logits [batch, seq, 256]; `visit` as above. */
ad_tensor *ad_target_logits(ad_target *target, ad_tape *t, ad_tensor *tokens,
                            ad_tensor *(*visit)(void *own, ad_tape *t, size_t site, ad_tensor *x, ad_tensor *w),
                            void *own);

#endif
