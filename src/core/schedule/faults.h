/* What is wrong with a table: sentences, each with the law that is broken and where. */
#ifndef SCHEDULE_FAULTS_H
#define SCHEDULE_FAULTS_H
#include "schedule/table.h"

enum { AD_TABLE_FAULTS_MAX = 8, AD_TABLE_FAULT_TEXT = 640 };

typedef struct ad_table_fault {
  ad_table_law law;
  int32_t rank, place;       /* -1: it is of no rank, of no place in its list */
  int32_t stage, microbatch; /* -1: of none */
  char text[AD_TABLE_FAULT_TEXT];
} ad_table_fault;

/* The first ones are kept, all are counted. */
typedef struct ad_table_faults {
  ad_table_fault list[AD_TABLE_FAULTS_MAX];
  size_t count;
} ad_table_faults;

/* Where an action stands; rank -1: nowhere. */
typedef struct ad_table_spot {
  int32_t rank, place;
} ad_table_spot;

/* Of the action that stands there: the sentence begins with "rank 1, place 4 (1B0): ". */
void ad_table_fault_at(ad_table_faults *faults, ad_table_law law, const ad_table *table, ad_table_spot at,
                       const char *format, ...) AD_PRINTF(5, 6);
/* Of a stage and a microbatch, -1 of none, whose action stands nowhere; rank -1: of no rank. */
void ad_table_fault_of(ad_table_faults *faults, ad_table_law law, int32_t rank, int32_t stage, int32_t microbatch,
                       const char *format, ...) AD_PRINTF(6, 7);
const char *ad_table_law_name(ad_table_law law);

#endif
