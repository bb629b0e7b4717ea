/* For a process that mpirun, srun or `addend run` started as a rank: it joins the other ranks and starts none
 * itself. Only the first rank prints. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/command.h"

static int own_errors = -1; /* the original standard error, if this rank was silenced; -1 if it was not */
static int is_alone;

static const char *rank_in_environment(void) {
  static const char *const names[] = {"ADDEND_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (getenv(names[i])) return getenv(names[i]);
  return "0";
}

void ad_cli_log(void *context, ad_log_level level, const char *message) {
  dprintf(own_errors >= 0 ? own_errors : STDERR_FILENO, "addend: %s%s\n", level == AD_LOG_WARNING ? "warning: " : "",
          message);
}

void ad_cli_ends_alone(void) { is_alone = 1; }

/* Waits, so that the launcher ends this process after the first rank failed. If this process ended first, the launcher
 * might kill the first rank before its message is printed. */
static void let_first_rank_end(void) {
  enum { SECONDS = 3 };
  if (!is_alone) sleep(SECONDS);
}

void ad_cli_let_first_rank_speak(void) {
  if (!ad_comm_launched() || atol(rank_in_environment()) == 0) return;
  atexit(let_first_rank_end);
  own_errors = dup(STDERR_FILENO);
  if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) own_errors = -1;
}

void ad_cli_speak(void) {
  if (own_errors >= 0) dup2(own_errors, STDERR_FILENO);
}

void ad_cli_report_ranks(ad_status status, const char *message) {
  ad_comm *comm;
  if (!ad_comm_launched() || ad_comm_open(&comm)) return;
  ad_comm_fail(comm, status, message);
  ad_comm_close(comm);
}
