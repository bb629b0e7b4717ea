/* The laws that every stage performs F once and its backward once for every microbatch, on the stage's rank. */
#include "schedule/laws.h"

static void judge_forward(const ad_table_index *index, int32_t s, int32_t m, ad_table_faults *faults) {
  if (ad_table_find(index, AD_ACTION_F, s, m).rank >= 0) return;
  ad_table_fault_of(faults, AD_TABLE_LAW_ONCE, index->rank_of[s], s, m,
                    "stage %d never computes the forward of microbatch %d; put %dF%d into the list of this rank", s, m,
                    s, m);
}

// Checks that the table has B once, or I and W once, for this stage and microbatch.
static void judge_backward(const ad_table_index *index, int32_t s, int32_t m, ad_table_faults *faults) {
  ad_table_spot whole = ad_table_find(index, AD_ACTION_B, s, m), inputs = ad_table_find(index, AD_ACTION_I, s, m),
                weights = ad_table_find(index, AD_ACTION_W, s, m);
  ad_table_spot half = inputs.rank >= 0 ? inputs : weights;
  if (whole.rank < 0 && half.rank < 0)
    ad_table_fault_of(faults, AD_TABLE_LAW_ONCE, index->rank_of[s], s, m,
                      "stage %d never computes the backward of microbatch %d; put %dB%d, or %dI%d and %dW%d, into the "
                      "list of this rank",
                      s, m, s, m, s, m, s, m);
  else if (whole.rank >= 0 && half.rank >= 0)
    ad_table_fault_at(faults, AD_TABLE_LAW_ONCE, index->table, whole,
                      "B is the full backward, but %s of the same stage and microbatch is at place %d of rank %d; "
                      "write I and W, or B alone (what PyTorch before 2.6 called B is I here)",
                      half.place == inputs.place && half.rank == inputs.rank ? "I" : "W", half.place, half.rank);
  else if (whole.rank < 0 && weights.rank < 0)
    ad_table_fault_at(faults, AD_TABLE_LAW_ONCE, index->table, inputs,
                      "the gradient of the weights is never computed; put %dW%d after this action", s, m);
  else if (whole.rank < 0 && inputs.rank < 0)
    ad_table_fault_at(faults, AD_TABLE_LAW_ONCE, index->table, weights,
                      "the gradient of the inputs is never computed; put %dI%d before this action", s, m);
}

void ad_table_law_once(const ad_table_index *index, ad_table_faults *faults) {
  for (int32_t s = 0; s < index->table->stages; s++) {
    for (int32_t m = 0; m < index->table->microbatches; m++) {
      judge_forward(index, s, m, faults);
      judge_backward(index, s, m, faults);
    }
  }
}

void ad_table_law_stages(const ad_table_index *index, ad_table_faults *faults) {
  const ad_table *table = index->table;
  for (int32_t r = 0; r < table->ranks; r++) {
    for (size_t i = 0; i < table->rows[r].count; i++) {
      const ad_action *action = &table->rows[r].actions[i];
      if (ad_action_record_of(action->kind)->names == AD_NAMES_NOTHING || index->rank_of[action->stage] == r) continue;
      ad_table_fault_at(faults, AD_TABLE_LAW_STAGES, table, (ad_table_spot){r, (int32_t)i},
                        "stage %d is on rank %d, which has its first action; move this action to that rank",
                        action->stage, index->rank_of[action->stage]);
    }
  }
}
