/* Joins the ranks that mpirun, srun or `addend run` started; there must be as many as the recipe's mesh has. */
#include <inttypes.h>
#include <stdio.h>

#include "trainer.h"

static int fits(ad_comm *comm, const ad_recipe *recipe) {
  int64_t needed = 0, started = ad_comm_size(comm);
  char mesh[256];
  ad_status status = ad_recipe_world(recipe, &needed);
  if (status) return ad_cli_failed(status);
  if (needed == started) return CLI_HOLDS;
  fprintf(stderr,
          "addend: the launcher started %" PRId64 " rank(s), but the mesh \"%s\" of %s has %" PRId64
          " ranks; start %" PRId64 " ranks (-n %" PRId64 ") or change `mesh`\n",
          started, ad_recipe_mesh_text(recipe, mesh, sizeof mesh), recipe->name, needed, needed, needed);
  return CLI_WRONG_CALL;
}

int ad_cli_join(const ad_recipe *recipe, ad_comm **out) {
  ad_comm *comm;
  ad_status status = ad_comm_open(&comm);
  if (status) {
    // AD_INVALID is the same on every rank, and the first rank prints it. Any other error may be of this rank alone, so
    // this rank prints it.
    if (status != AD_INVALID) ad_cli_speak();
    return ad_cli_failed(status);
  }
  int failed = fits(comm, recipe);
  if (failed)
    ad_comm_close(comm);
  else
    *out = comm;
  return failed;
}
