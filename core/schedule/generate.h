/* Generators, one for each schedule: each adds the schedule's compute actions to an empty table that has the ranks of
 * the shape. Stages are a chain, and stage s lies on rank s modulo ranks. */
#ifndef SCHEDULE_GENERATE_H
#define SCHEDULE_GENERATE_H
#include "schedule/table.h"

typedef ad_status ad_table_generator(ad_table *table, const ad_table_shape *shape);
ad_table_generator ad_table_gpipe, ad_table_one_f_one_b, ad_table_interleaved, ad_table_zero_bubble, ad_table_leads;

#endif
