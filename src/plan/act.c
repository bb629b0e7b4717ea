/* One process acts as one rank of a world of any size, on engine dry, and counts what that rank would hold. */
#include "plan/plan.h"
#include "train/run.h"

size_t ad_plan_peak(const ad_plan_memory *memory) {
  return memory->params + memory->gathered + memory->grads + memory->optimizer + memory->buckets + memory->activations +
         memory->runtime;
}

static ad_status act_on(ad_comm *comm, const ad_recipe *recipe, ad_run **out) {
  ad_run_options options = {.size = sizeof options};
  ad_run *run;
  AD_TRY(ad_run_create(comm, recipe, &options, &run));
  ad_step_report report;
  ad_status status = ad_run_step(run, 0, &report);
  if (status)
    ad_run_destroy(run);
  else
    *out = run;
  return status;
}

ad_status ad_plan_act(const ad_recipe *recipe, int64_t rank, int64_t world, ad_comm **comm, ad_run **run) {
  ad_comm *dry;
  AD_TRY(ad_comm_open_dry(rank, world, &dry));
  ad_status status = act_on(dry, recipe, run);
  if (status)
    ad_comm_close(dry);
  else
    *comm = dry;
  return status;
}

ad_plan_memory ad_plan_memory_of(ad_run *run) {
  ad_plan_memory memory = {.rank = ad_comm_rank(ad_run_comm(run)), .ranks = 1};
  memory.params = ad_store_bytes(ad_run_store(run));
  memory.gathered = ad_store_gathered_bytes(ad_run_store(run));
  memory.buckets = ad_reducer_bytes(ad_run_reducer(run));
  memory.optimizer = ad_adamw_bytes(ad_run_optimizer(run));
  memory.activations = ad_tape_peak_bytes(ad_run_tape(run));
  memory.runtime = ad_run_data_bytes(run);
  return memory;
}
