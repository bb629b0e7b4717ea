/* The launcher: starts ranks as processes of this machine, and watches them until all have ended. It moves no data
 * between ranks; the backends do. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/guest.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/signals.h"
#include "comm/foreign.h"
#include "comm/processor.h"
#include "comm/settings.h"
#include "comm/shm/backend.h"
#include "comm/shm/error.h"
#include "comm/shm/file.h"
#include "comm/shm/join.h"
#include "comm/shm/wait.h"
#include "comm/watchdog.h"

enum {
  LOOK_MILLISECONDS = 50,     // time between two checks of the ranks
  GRACE_MILLISECONDS = 2000,  // time from the first error until ranks that still run are killed
  // Time from a request to stop until ranks are killed; ranks use it to finish a step and write files.
  SIGNAL_GRACE_MILLISECONDS = 10000,
  ANSWER_MILLISECONDS = 30000,  // after a request to stop, ranks are killed if no rank has made progress for so long
  // signals within this time are one request, since terminal, shell and `timeout` each send one
  ONE_SIGNAL_MILLISECONDS = 250,
  STATUS_NOT_RUN = 127  // exit status of a child whose program could not be run
};

typedef struct child {
  pid_t pid;  // 0: not started, or ended
  int fd;     // pidfd, readable when the child has ended; -1: none, the launcher calls waitpid every LOOK_MILLISECONDS
} child;

typedef struct launcher {
  const ad_launch_options *options;
  ad_launch_result *result;
  int fd;  // the ranks' shared memory file
  shm_control *control;
  child *children;
  ad_guest *guests;       // which function of a user's program each rank runs; NULL: not known
  struct pollfd *polled;  // for poll: the children, then the signals
  int running;            // children that have not ended
  sigset_t old_mask;
  struct sigaction old_child_action;
  int signals;             // a signalfd
  int interrupted;         // the signal that requested a stop, or 0
  int64_t interrupted_at;  // when that signal came, by milliseconds()
  int interrupted_again;   // the second signal that requested a stop, after which the ranks were killed, or 0
  int64_t deadline;        // by milliseconds(): when ranks that still run are killed; 0: never
  int ended_rest;          // 1: the launcher killed the ranks that had not ended
  char blamed[256];        // the ranks for which others waited when ranks were killed after a request to stop
  ad_watchdog *dog;
} launcher;

static int is_forked_rank;  // 1: the launcher forked this process as a rank

static int64_t milliseconds(void) { return ad_now() / 1000000; }

/* ---- in the new process, before it is a rank ---- */

static void set_number(const char *name, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, value);
  setenv(name, text, 1);
}

// Sets the name of the process that ps and top show, for example to "addend:5".
static void name_process(uint32_t rank) {
  char name[16] = "", whole[32];  // the kernel keeps 15 characters
  prctl(PR_GET_NAME, name);
  snprintf(whole, sizeof whole, "%.11s:%u", name, rank);
  prctl(PR_SET_NAME, whole);
}

// Makes the kernel kill this child when its parent ends. The check after the prctl is for a parent that ended before
// the prctl.
static void die_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) raise(SIGKILL);
}

// Replaces this child's program by the caller's; returns only if that fails.
static int run_program(launcher *l, uint32_t rank) {
  char words[AD_MESSAGE_MAX];
  char *const *argv = l->options->argv;
  set_number("ADDEND_SHM_FD", l->fd);
  set_number("ADDEND_RANK", rank);
  set_number("ADDEND_RANKS", l->options->ranks);
  execvp(argv[0], argv);
  snprintf(words, sizeof words, "%s could not be run: %s", argv[0], strerror(errno));
  ad_shm_raise(l->control, rank, AD_SYSTEM, AD_SYSTEM, words);
  return STATUS_NOT_RUN;
}

// Runs the caller's function as a rank and returns its exit status.
static int run_function(launcher *l, uint32_t rank) {
  shm_world *world;
  ad_comm *comm;
  is_forked_rank = 1;
  name_process(rank);
  ad_guest_note_in(l->guests ? &l->guests[rank] : NULL);
  ad_status status = ad_shm_join(l->fd, l->control, rank, NULL, &world);
  if (!status) status = ad_comm_create(&ad_backend_shm, world, rank, l->options->ranks, &comm);
  if (status) return status == AD_MEMORY ? AD_MEMORY : AD_PEER_FAILED;
  int exit_status = l->options->function(comm, l->options->context);
  ad_comm_close(comm);
  return exit_status;
}

static void run_child(launcher *l, uint32_t rank, pid_t parent) {
  die_with(parent);
  sigaction(SIGCHLD, &l->old_child_action, NULL);
  sigprocmask(SIG_SETMASK, &l->old_mask, NULL);
  int status = l->options->argv ? run_program(l, rank) : run_function(l, rank);
  fflush(NULL);
  _exit(status);
}

/* ---- starting the ranks' processes ---- */

// Forks the process of a rank, and opens the descriptor (pidfd) that shows when it ends.
static ad_status start_rank(launcher *l, uint32_t rank) {
  pid_t parent = getpid(), pid = fork();
  if (!pid) run_child(l, rank, parent);
  if (pid < 0)
    return ad_fail(AD_SYSTEM, "rank %u of %" PRId64 " could not be started, because the system reports '%s'%s", rank,
                   l->options->ranks, strerror(errno), errno == EAGAIN ? "; raise ulimit -u" : "");
  l->children[rank].pid = pid;
  l->running++;
  // If no pidfd can be made (an old kernel, a filter of system calls, no descriptors left), fd is -1, which poll
  // ignores.
  l->children[rank].fd = (int)syscall(SYS_pidfd_open, pid, 0);
  l->polled[rank] = (struct pollfd){.fd = l->children[rank].fd, .events = POLLIN};
  return AD_OK;
}

static ad_status start_ranks(launcher *l) {
  fflush(NULL);  // otherwise each child would write this process's buffered output once more
  for (int64_t rank = 0; rank < l->options->ranks; rank++) AD_TRY(start_rank(l, (uint32_t)rank));
  return AD_OK;
}

/* ---- watching the ranks' processes until all have ended ---- */

// Sends a signal to a rank. If the child is a shell that started the rank, shell and rank both get the signal.
static void signal_rank(const launcher *l, uint32_t rank, int signal_number) {
  const shm_record *record = &ad_shm_records(l->control)[rank];
  pid_t child_pid = l->children[rank].pid, joined = atomic_load(&record->pid);
  if (child_pid) kill(child_pid, signal_number);
  if (joined && joined != child_pid && atomic_load(&record->state) == SHM_JOINED) kill(joined, signal_number);
}

static void signal_all(const launcher *l, int signal_number) {
  for (int64_t rank = 0; rank < l->options->ranks; rank++) signal_rank(l, (uint32_t)rank, signal_number);
}

// Makes the launcher kill the ranks that still run after `grace` milliseconds, or earlier if an earlier deadline was
// set before.
static void start_grace(launcher *l, int64_t grace) {
  int64_t end = milliseconds() + grace;
  if (!l->deadline || end < l->deadline) l->deadline = end;
}

// Records a rank's failure. The result describes the first rank that failed, or the rank that set the world's error.
static void note_failure(launcher *l, int64_t rank, int exit_status, int signal_number) {
  int is_reported = atomic_load(&l->control->failed) == 2 && l->control->fail_rank == rank;
  if (l->result->exit_status && !is_reported) return;
  l->result->rank = rank;
  l->result->exit_status = exit_status;
  l->result->signal = signal_number;
}

// Returns the name of the function of a user's program that was running when the rank ended, or NULL if none was.
static const char *ended_in(const launcher *l, uint32_t rank) {
  return l->guests ? ad_guest_running(&l->guests[rank]) : NULL;
}

static void raise_death(launcher *l, uint32_t rank, int signal_number) {
  char words[AD_MESSAGE_MAX];
  const char *inside = ended_in(l, rank);
  snprintf(words, sizeof words, "rank %u died%s%s of signal %d, SIG%s (%s)", rank, inside ? " in " : "",
           inside ? inside : "", signal_number, ad_signal_name(signal_number), strsignal(signal_number));
  ad_shm_raise(l->control, rank, AD_RANK_DIED, AD_RANK_DIED, words);
}

// Sets the world's error: a function of a user's program has ended the rank's process with `exit_status`, which may be
// 0.
static void raise_exit(launcher *l, uint32_t rank, int exit_status) {
  char words[AD_MESSAGE_MAX];
  snprintf(words, sizeof words,
           "rank %u ended in %s, with exit status %d; a function of a program must return, and report an error by "
           "ad_fail",
           rank, ended_in(l, rank), exit_status);
  ad_shm_raise(l->control, rank, AD_RANK_DIED, AD_RANK_DIED, words);
}

// Returns the signal that ended the rank's process, or 0. If the child is a shell and the rank's process died of a
// signal, the shell's exit status is 128 + signal, and the rank's state is still SHM_JOINED.
static int ending_signal(const shm_record *record, int wait_status) {
  if (WIFSIGNALED(wait_status)) return WTERMSIG(wait_status);
  int status = WEXITSTATUS(wait_status);
  return status > 128 && status < 128 + NSIG && atomic_load(&record->state) == SHM_JOINED ? status - 128 : 0;
}

// Records how a rank ended: in the launch's result, and in the shared memory file, where ranks that wait for this rank
// find it.
static void rank_ended(launcher *l, uint32_t rank, int wait_status) {
  shm_record *record = &ad_shm_records(l->control)[rank];
  int signal_number = ending_signal(record, wait_status);
  int exit_status = signal_number ? 128 + signal_number : WEXITSTATUS(wait_status);
  if (!signal_number && ended_in(l, rank) && !l->ended_rest && !l->interrupted) {
    raise_exit(l, rank, exit_status);
    exit_status = exit_status ? exit_status : AD_RANK_DIED;
  }
  if (exit_status && !l->ended_rest && !l->interrupted) {
    start_grace(l, GRACE_MILLISECONDS);
    note_failure(l, rank, exit_status, signal_number);
  }
  record->exit_status = exit_status;
  uint32_t joined = atomic_exchange(&record->state, signal_number ? SHM_DIED : SHM_LEFT);
  if (signal_number && !l->ended_rest) raise_death(l, rank, signal_number);
  if (joined != SHM_LEFT) ad_shm_wake_all(l->control);
}

// Collects the rank's exit status if its process has ended.
static void collect(launcher *l, uint32_t rank) {
  int wait_status = 0;
  child *ended = &l->children[rank];
  if (waitpid(ended->pid, &wait_status, WNOHANG) == 0) return;
  if (ended->fd >= 0) close(ended->fd);
  *ended = (child){.fd = -1};
  l->polled[rank].fd = -1;
  l->running--;
  rank_ended(l, rank, wait_status);
}

static void end_rest(launcher *l) {
  l->ended_rest = 1;
  signal_all(l, SIGKILL);
}

// Passes a signal on to the ranks. If the signal came from the terminal, leaves out ranks in the launcher's process
// group: the terminal sends its signals to that whole group.
static void pass_on(const launcher *l, const struct signalfd_siginfo *info) {
  for (int64_t rank = 0; rank < l->options->ranks; rank++) {
    pid_t pid = l->children[rank].pid;
    if (info->ssi_code == SI_KERNEL && pid && getpgid(pid) == getpgrp()) continue;
    signal_rank(l, (uint32_t)rank, (int)info->ssi_signo);
  }
}

static void note_request(launcher *l, int signal_number) {
  l->interrupted = signal_number;
  l->interrupted_at = milliseconds();
  note_failure(l, -1, 128 + signal_number, signal_number);
}

// Passes the first request to stop on to the ranks; kills the ranks at the second. A SIGHUP after the first request
// does not count, since the end of a terminal session sends two signals.
static void take_request(launcher *l, const struct signalfd_siginfo *info) {
  int signal_number = (int)info->ssi_signo;
  int64_t patience = l->options->patience_seconds;
  if (l->interrupted) {
    int is_second = signal_number != SIGHUP && milliseconds() - l->interrupted_at >= ONE_SIGNAL_MILLISECONDS;
    if (is_second && !l->interrupted_again) {
      l->interrupted_again = signal_number;
      end_rest(l);
    }
    return;
  }
  note_request(l, signal_number);
  start_grace(l, patience > 0 ? patience * 1000 : SIGNAL_GRACE_MILLISECONDS);
  pass_on(l, info);
}

// Handles a signal: passes SIGUSR1 on to the ranks, kills the ranks at SIGQUIT, and treats every other signal as a
// request to stop.
static void read_signal(launcher *l) {
  struct signalfd_siginfo info;
  if (read(l->signals, &info, sizeof info) != (ssize_t)sizeof info) return;
  if (info.ssi_signo == SIGUSR1) {
    pass_on(l, &info);
  } else if (info.ssi_signo == SIGQUIT) {
    if (!l->interrupted) note_request(l, SIGQUIT);
    end_rest(l);
  } else {
    take_request(l, &info);
  }
}

// If the world has an error, ranks that still run after GRACE_MILLISECONDS are killed.
static void look_at_error(launcher *l) {
  if (atomic_load(&l->control->failed)) start_grace(l, GRACE_MILLISECONDS);
}

// Returns 1 if there was a request to stop and no rank has made progress for ANSWER_MILLISECONDS since then, so that
// the ranks will not end by themselves.
static int is_unanswered(const launcher *l) {
  int64_t moved_at = l->dog->moved_at / 1000000;
  return l->interrupted &&
         milliseconds() - (moved_at > l->interrupted_at ? moved_at : l->interrupted_at) >= ANSWER_MILLISECONDS;
}

static void end_rest_in_time(launcher *l) {
  if (l->ended_rest) return;
  if (!(l->deadline && milliseconds() >= l->deadline) && !is_unanswered(l)) return;
  ad_text blamed = ad_text_on(l->blamed, sizeof l->blamed);
  if (l->interrupted) ad_watchdog_blame(l->dog, &blamed);
  end_rest(l);
}

// Waits until a child ends, a signal comes, or LOOK_MILLISECONDS have passed. poll fails if there are more ranks than a
// process may have open files; then this function only waits LOOK_MILLISECONDS.
static void wait_for_news(launcher *l) {
  const struct timespec look = {.tv_nsec = LOOK_MILLISECONDS * 1000000};
  nfds_t count = (nfds_t)l->options->ranks + 1;
  if (poll(l->polled, count, LOOK_MILLISECONDS) >= 0) return;
  if (errno != EINTR) nanosleep(&look, NULL);
  for (nfds_t i = 0; i < count; i++) l->polled[i].revents = POLLIN;
}

// Watches the ranks until all have ended.
static void watch(launcher *l) {
  nfds_t count = (nfds_t)l->options->ranks;
  l->polled[count] = (struct pollfd){.fd = l->signals, .events = POLLIN};
  while (l->running) {
    wait_for_news(l);
    look_at_error(l);
    if (l->polled[count].revents) read_signal(l);
    for (nfds_t rank = 0; rank < count; rank++)
      if (l->children[rank].pid && (l->children[rank].fd < 0 || l->polled[rank].revents)) collect(l, (uint32_t)rank);
    ad_watchdog_look(l->dog);
    end_rest_in_time(l);
  }
}

/* ---- one launch from its begin to its end ---- */

// Chooses the signals that the launcher handles. SIGHUP is among them, unless the process ignores it, as under nohup.
static void choose_signals(sigset_t *mask) {
  struct sigaction hangup;
  sigemptyset(mask);
  sigaddset(mask, SIGINT);
  sigaddset(mask, SIGTERM);
  sigaddset(mask, SIGQUIT);
  sigaddset(mask, SIGUSR1);
  if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) sigaddset(mask, SIGHUP);
}

static ad_status take_signals(launcher *l) {
  sigset_t mask;
  struct sigaction standard = {.sa_handler = SIG_DFL};
  choose_signals(&mask);
  l->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (l->signals < 0)
    return ad_fail(AD_SYSTEM,
                   "the launcher of the ranks cannot watch signals (%s); if too many files are open, raise ulimit -n",
                   strerror(errno));
  sigaction(SIGCHLD, &standard, &l->old_child_action);  // if SIGCHLD were ignored, waitpid could not see children end
  sigprocmask(SIG_BLOCK, &mask, &l->old_mask);
  return AD_OK;
}

static void give_back_signals(launcher *l) {
  close(l->signals);
  sigprocmask(SIG_SETMASK, &l->old_mask, NULL);
  sigaction(SIGCHLD, &l->old_child_action, NULL);
}

static ad_status run_ranks(launcher *l) {
  AD_TRY(take_signals(l));
  ad_status status = start_ranks(l);
  if (status) end_rest(l);
  watch(l);
  give_back_signals(l);
  return status;
}

// Returns the message of a rank's error. For AD_INVALID leaves out "rank N: ": a wrong call or recipe is wrong on all
// ranks, and it does not matter which rank reported it first.
static const char *words_of(const ad_launch_result *result) {
  int64_t rank;
  int length = 0;
  if (result->status == AD_INVALID && sscanf(result->message, "rank %" SCNd64 ": %n", &rank, &length) == 1)
    return result->message + length;
  return result->message;
}

static ad_status report_interrupted(const launcher *l) {
  const char *again = l->interrupted_again ? ad_signal_name(l->interrupted_again) : "";
  return ad_fail(AD_INTERRUPTED, "the ranks were interrupted by signal %d, SIG%s%s%s%s%s", l->interrupted,
                 ad_signal_name(l->interrupted), *again ? ", then by SIG" : "", again,
                 l->ended_rest ? "; ranks that still ran were killed" : "", l->blamed);
}

// Computes the launch's result, status and message from how the ranks ended.
static ad_status judge_ranks(launcher *l) {
  ad_launch_result *result = l->result;
  result->joined = atomic_load(&l->control->joined);
  if (atomic_load(&l->control->failed)) {
    ad_status status = ad_shm_error(l->control);
    result->status = atomic_load(&l->control->failed) == 2 ? (ad_status)l->control->fail_cause : status;
    snprintf(result->message, sizeof result->message, "%s", ad_last_error());
  }
  if (l->interrupted) return report_interrupted(l);
  if (result->status == AD_SYSTEM && result->exit_status == STATUS_NOT_RUN)
    return ad_fail(AD_SYSTEM, "%s", result->message);
  if (result->signal) return ad_fail(AD_RANK_DIED, "%s", result->message);
  if (l->ended_rest && !result->exit_status) {  // no rank failed by itself
    result->rank = l->control->fail_rank;
    result->exit_status = 128 + SIGKILL;
  }
  if (!result->exit_status) return AD_OK;
  if (result->message[0]) return ad_fail(AD_PEER_FAILED, "%s", words_of(result));
  return ad_fail(AD_PEER_FAILED, "rank %" PRId64 " ended with exit status %d; see what this rank printed", result->rank,
                 result->exit_status);
}

static ad_status launch(launcher *l) {
  size_t ranks = (size_t)l->options->ranks;
  AD_TRY(ad_shm_make((uint32_t)ranks, 0, l->options->argv != NULL, &l->fd, &l->control));
  if (l->options->function) l->guests = ad_guests_create(ranks);
  ad_status status = ad_new(ranks, &l->children);
  if (!status) status = ad_new(ranks + 1, &l->polled);
  if (!status) status = ad_watchdog_open(l->control, -1, &l->dog);
  if (!status) {
    for (size_t i = 0; i < ranks; i++) l->polled[i].fd = -1;
    status = run_ranks(l);
  }
  if (!status) status = judge_ranks(l);
  ad_release(l->children);
  ad_release(l->polled);
  ad_guests_release(l->guests, ranks);
  ad_watchdog_close(l->dog);
  ad_shm_unmake(l->fd, l->control);
  return status;
}

// Refuses to launch ranks from a process that is a rank itself: nobody wants a separate world in each rank.
static ad_status check_nested(void) {
  if (!is_forked_rank && !ad_comm_launched()) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "ad_launch was called in a process that is itself a rank, so each rank would start a world of its own; join the "
      "existing world with ad_comm_open, or start the program without `addend run`, mpirun or srun");
}

static ad_status check_options(const ad_launch_options *options) {
  if (options->ranks < 1 || options->ranks > SHM_RANKS_MAX)
    return ad_fail(AD_INVALID,
                   "ad_launch: `ranks` is %" PRId64 ", but must be from 1 to %d, the most ranks on one machine",
                   options->ranks, SHM_RANKS_MAX);
  if (!options->function == !options->argv)
    return ad_fail(
        AD_INVALID,
        "ad_launch: of the options `function` and `argv` both are set, or neither; set exactly one of the two");
  if (options->argv && !options->argv[0])
    return ad_fail(AD_INVALID, "ad_launch: the option `argv` is empty; make the program its first element");
  AD_TRY(ad_processor_check(ad_processor_kind(), options->ranks));
  AD_TRY(check_nested());
  AD_TRY(ad_foreign_check());  // comes after check_nested, which refuses worlds that this process could join
  if (options->function) AD_TRY(ad_threads_check());
  return ad_settings_check();  // before any rank starts: otherwise every rank would report the same wrong setting
}

/* Runs the function in this process, which is already a rank of a world that another launcher started. */
static ad_status run_joined(const ad_launch_options *options, ad_launch_result *result) {
  ad_comm *comm;
  AD_TRY(ad_comm_open(&comm));
  int64_t rank = ad_comm_rank(comm);
  result->joined = ad_comm_size(comm);
  result->exit_status = options->function(comm, options->context);
  ad_comm_close(comm);
  if (!result->exit_status) return AD_OK;
  result->rank = rank;
  return ad_fail(AD_PEER_FAILED, "rank %" PRId64 " ended with exit status %d; see what this rank printed", rank,
                 result->exit_status);
}

ad_status ad_launch(const ad_launch_options *options, ad_launch_result *out) {
  ad_launch_result result = {.size = sizeof result, .rank = -1};
  ad_launch_options own;
  AD_TRY(ad_options_take(&own, sizeof own, options, "ad_launch_options"));
  int joins = own.joins && own.function && !is_forked_rank && ad_comm_launched();
  if (!joins) AD_TRY(check_options(&own));
  if (!out) return ad_fail(AD_INVALID, "ad_launch: `out` is NULL, but must point to an ad_launch_result");
  AD_TRY(ad_result_check(out, sizeof result, "ad_launch_result"));
  launcher l = {.options = &own, .result = &result};
  ad_status status = joins ? run_joined(&own, &result) : launch(&l);
  ad_result_give(out, &result);
  return status;
}
