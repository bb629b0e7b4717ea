/* The recipe keys of moe, and the checks of their values against each other and the mesh. */
#include "moe/keys.h"

#include <stdio.h>
#include <string.h>

#include "moe/moe.h"

#define AT(field) offsetof(ad_moe_options, field)

const ad_key ad_moe_keys[AD_MOE_KEY_COUNT] = {AD_TEXT_DECODER_KEYS(
    ad_moe_options, ad_attention_bias_words,
    {"model.experts", AD_KEY_INTEGER, .offset = AT(experts), .least = 1, .most = 1 << 20,
     .help = "experts of each block"},
    {"model.top_k", AD_KEY_INTEGER, .offset = AT(top_k), .least = 1, .most = 1 << 20, .fallback = "1",
     .help = "experts of each token"},
    {"model.expert_hidden", AD_KEY_INTEGER, .offset = AT(expert_hidden), .least = 1, .most = 1 << 22,
     .help = "width inside an expert"},
    {"model.shared_experts", AD_KEY_INTEGER, .offset = AT(shared_experts), .least = 0, .most = 1 << 22, .fallback = "0",
     .help = "width inside the expert that every token has; 0: there is none"},
    {"model.sigmoid", AD_KEY_BOOLEAN, .offset = AT(sigmoid), .fallback = "false",
     .help = "scores are the sigmoid of each logit, instead of the softmax over all experts"},
    {"model.score_before_experts", AD_KEY_BOOLEAN, .offset = AT(score_before_experts), .fallback = "false",
     .help = "a score is a factor of its expert's input, instead of its output"},
    {"model.normalised_scores", AD_KEY_BOOLEAN, .offset = AT(normalised_scores), .fallback = "false",
     .help = "the scores of a token's experts are divided by their sum"},
    {"model.summed_gate", AD_KEY_BOOLEAN, .offset = AT(summed_gate), .fallback = "false",
     .help = "on tp the router is R, and the reducer sums its gradient, instead of I"},
    {"model.capacity", AD_KEY_NUMBER, .offset = AT(capacity), .least = 0, .open_least = 1, .most = 1e9,
     .word = "unlimited", .fallback = "unlimited",
     .help = "what an expert takes of a microbatch at most, times an even share; the choices of later tokens are "
             "dropped"},
    {"model.balance_loss", AD_KEY_NUMBER, .offset = AT(balance_loss), .least = 0, .most = 1e6, .fallback = "0",
     .help = "coefficient of the load-balancing loss"},
    {"model.balance_rate", AD_KEY_NUMBER, .offset = AT(balance_rate), .least = 0, .most = 1, .fallback = "0",
     .help = "what the balancing bias of an expert changes by after a step; 0: there is none"},
    {"views.sparse", AD_KEY_VIEW, .offset = AT(sparse), .fallback = "",
     .help = "the mesh as experts see it, such as \"ep=2 etp=1\" (efsdp: the ranks that are left; another axis that is "
             "not named has size 1); left out: "
             "ep=1 and etp=tp"})};

/* Makes the view with both axes ep and etp: an axis that the text leaves out is added with size 1, ep before etp. */
static ad_status name_axes(const char *given, const ad_mesh *mesh, ad_mesh **out) {
  char text[128];
  ad_mesh *view;
  AD_TRY(ad_key_view(mesh, given, &view));
  int has_ep = ad_mesh_named(view) >> AD_EP & 1, has_etp = ad_mesh_named(view) >> AD_ETP & 1;
  if (has_ep && has_etp) return *out = view, AD_OK;
  const char *all = ad_mesh_text(view), *etp = has_etp ? strstr(all, "etp=") : all + strlen(all);
  snprintf(text, sizeof text, "%.*s%s%s%s", (int)(etp - all), all, has_etp ? "" : " ",
           has_ep    ? "etp=1"
           : has_etp ? "ep=1 "
                     : "ep=1 etp=1",
           etp);
  ad_mesh_destroy(view);
  return ad_key_view(mesh, text, out);
}

ad_status ad_moe_view(const ad_moe_options *options, const ad_mesh *mesh, ad_mesh **out) {
  char text[64];
  snprintf(text, sizeof text, "ep=1 etp=%lld", (long long)ad_mesh_axis_size(mesh, AD_TP));
  return options->sparse ? name_axes(options->sparse, mesh, out) : ad_key_view(mesh, text, out);
}

static void check_names(const ad_mesh *view, const ad_complaints *to) {
  ad_axes wanted = AD_AXES(AD_EFSDP) | AD_AXES(AD_EP) | AD_AXES(AD_ETP), named = ad_mesh_named(view);
  if ((named & wanted) != wanted || named & ~(wanted | AD_AXES(AD_DP_REPLICATE)))
    ad_complain(to, "views.sparse",
                "may have only the axes efsdp, ep, etp and dp_replicate, but is \"%s\"; an axis that is left out has "
                "size 1, but efsdp gets the ranks that are left",
                ad_mesh_text(view));
}

/* Returns 1 if the ranks of each group of etp are those of a group of tp. */
static int has_groups_of_tp(const ad_mesh *view, const ad_mesh *mesh) {
  ad_axes here[AD_AXIS_COUNT], there[AD_AXIS_COUNT];
  int count = ad_mesh_common_sets(mesh, view, here, there);
  for (int i = 0; i < count; i++)
    if (here[i] == AD_AXES(AD_TP) && there[i] == AD_AXES(AD_ETP)) return 1;
  return 0;
}

static void check_tensor_axes(const ad_mesh *view, const ad_mesh *mesh, const ad_complaints *to) {
  long long tp = ad_mesh_axis_size(mesh, AD_TP), etp = ad_mesh_axis_size(view, AD_ETP);
  ad_axes splits = AD_AXES_DP | AD_AXES(AD_CP) | (etp == 1 ? AD_AXES(AD_TP) : 0); /* axes that shard tokens */
  if (etp != 1 && etp != tp)
    ad_complain(to, "views.sparse",
                "etp=%lld must be 1 (experts full, tokens split over tp) or tp=%lld (experts sharded as the MLP is)",
                etp, tp);
  else if (etp != 1 && !has_groups_of_tp(view, mesh))
    ad_complain(to, "views.sparse",
                "etp=%lld must have the same ranks as tp in the mesh \"%s\"; give etp the same position among the axes "
                "of the view as tp has in the mesh",
                etp, ad_mesh_text(mesh));
  else if (!(ad_mesh_named(mesh) & splits))
    ad_complain(to, "mesh", "must have the axis dp_shard, since views.sparse has axes besides etp; add dp_shard=1");
}

static void check_experts(const ad_moe_options *options, const ad_mesh *view, const ad_complaints *to) {
  long long experts = options->experts, ep = ad_mesh_axis_size(view, AD_EP), etp = ad_mesh_axis_size(view, AD_ETP);
  if (experts >= 1 && experts < ep)
    ad_complain(to, "model.experts",
                "ep=%lld distributes the experts, but %lld expert%s some ranks without an expert; set model.experts to "
                "at least %lld",
                ep, experts, experts == 1 ? " leaves" : "s leave", ep);
  if (options->expert_hidden >= 1 && options->expert_hidden < etp)
    ad_complain(
        to, "model.expert_hidden",
        "etp=%lld shards the width of the experts, which is only %lld; set model.expert_hidden to at least %lld", etp,
        (long long)options->expert_hidden, etp);
}

/* Returns 1 if a view with these sizes of ep and etp would be accepted, and writes the view to `text`. */
static int would_do(const ad_moe_options *options, const ad_mesh *mesh, int64_t ep, int64_t etp,
                    const ad_complaints *to, char text[64]) {
  ad_mesh *view;
  snprintf(text, 64, "ep=%lld etp=%lld", (long long)ep, (long long)etp);
  if (ad_mesh_size(mesh) % (ep * etp) || options->expert_hidden < etp) return 0;
  ad_status status = ad_key_view(mesh, text, &view);
  if (status == AD_MEMORY) ad_complain_of(to, "views.sparse", status);
  if (status) return 0;
  int has_replicas = (ad_mesh_named(mesh) & (AD_AXES_DP | AD_AXES(AD_CP))) != 0;
  int fits = etp == 1 || (has_replicas && has_groups_of_tp(view, mesh));
  ad_mesh_destroy(view);
  return fits;
}

/* Names views that would be accepted. Called if the recipe's view does not fit the mesh, about which a complaint was
 * made already. */
static void name_views(const ad_moe_options *options, const ad_mesh *mesh, const ad_complaints *to) {
  enum { NAMED_MAX = 8 };
  char named[NAMED_MAX * 64] = "", one[64];
  size_t used = 0;
  int64_t tp = ad_mesh_axis_size(mesh, AD_TP), etps[] = {1, tp};
  int count = 0;
  for (int i = 0; i < (tp > 1 ? 2 : 1); i++)
    for (int64_t ep = options->experts; ep >= 1 && count < NAMED_MAX; ep--)
      if (would_do(options, mesh, ep, etps[i], to, one))
        used += (size_t)snprintf(named + used, sizeof named - used, "%s\"%s\"", count++ ? ", " : "", one);
  if (count) ad_complain(to, "views.sparse", "these views fit this mesh: %s", named);
}

static void check_view(const ad_moe_options *options, const ad_mesh *mesh, const ad_complaints *to) {
  ad_mesh *view;
  ad_status status = ad_moe_view(options, mesh, &view);
  if (status == AD_MEMORY) ad_complain_of(to, "views.sparse", status);
  if (status == AD_INVALID) name_views(options, mesh, to);
  if (status) return;
  check_names(view, to);
  check_tensor_axes(view, mesh, to);
  check_experts(options, view, to);
  ad_mesh_destroy(view);
}

void ad_moe_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to) {
  const ad_moe_options *moe = options;
  long long tp = ad_mesh_axis_size(meshes[0], AD_TP), shared = moe->shared_experts;
  ad_text_decoder_check("moe", options, setting, meshes[0], to);
  if (moe->experts >= 1 && moe->top_k > moe->experts)
    ad_complain(to, "model.top_k", "is %lld, but must be at most model.experts, which is %lld", (long long)moe->top_k,
                (long long)moe->experts);
  if (shared > 0 && shared < tp)
    ad_complain(
        to, "model.shared_experts",
        "tp=%lld shards the width of the shared expert, which is only %lld; set model.shared_experts to at least %lld",
        tp, shared, tp);
  check_view(moe, meshes[0], to);
}
