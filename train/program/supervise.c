/* Runs a command with a user's program in a separate process. The program's code may end that process, by exit or by a
 * signal, while the command plans. The process that started it then reports in which function, with exit status 3. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/guest.h"
#include "base/signals.h"
#include "addend/program.h"

/* Sets `requests` to the signals by which a person asks something of the command. */
static void choose_requests(sigset_t *requests) {
  static const int list[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
  sigemptyset(requests);
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) sigaddset(requests, list[i]);
}

/* Returns 1 if the signal comes from a fault of the running code, and 0 if it comes from a person. */
static int is_fault(int signal_number) {
  return signal_number == SIGSEGV || signal_number == SIGBUS || signal_number == SIGFPE || signal_number == SIGILL ||
         signal_number == SIGABRT || signal_number == SIGTRAP || signal_number == SIGSYS;
}

/* Ends this process in the same way as the process of the command ended. */
static void end_as(int wait_status) {
  sigset_t all;
  if (!WIFSIGNALED(wait_status)) _exit(WEXITSTATUS(wait_status));
  sigfillset(&all);
  prctl(PR_SET_DUMPABLE, 0); /* the core dump of the command's process is enough */
  signal(WTERMSIG(wait_status), SIG_DFL);
  sigprocmask(SIG_UNBLOCK, &all, NULL);
  raise(WTERMSIG(wait_status));
  _exit(128 + WTERMSIG(wait_status));
}

static int report_ended(const char *inside, int wait_status, int (*failed)(ad_status status)) {
  int number = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  if (number)
    return failed(ad_fail(
        AD_RANK_DIED, "the process was ended while it ran %s, by signal %d, SIG%s (%s); see what the program printed",
        inside, number, ad_signal_name(number), strsignal(number)));
  return failed(ad_fail(AD_RANK_DIED,
                        "the process exited while it ran %s, with exit status %d, but a function of a program must "
                        "return; report errors with ad_fail",
                        inside, WEXITSTATUS(wait_status)));
}

/* Passes requests to the command's process until it has ended. A terminal sends its signals to the whole foreground
 * process group, so signals from a terminal are not passed. */
static int wait_for(pid_t command, const sigset_t *watched) {
  siginfo_t info;
  int wait_status;
  for (;;) {
    if (waitpid(command, &wait_status, WNOHANG) == command) return wait_status;
    int number = sigwaitinfo(watched, &info);
    if (number > 0 && number != SIGCHLD && info.si_code != SI_KERNEL) kill(command, number);
  }
}

void ad_program_supervise(int (*failed)(ad_status status)) {
  sigset_t watched, before;
  ad_guest *guest = ad_guests_create(1);
  if (!guest) return;
  choose_requests(&watched);
  sigaddset(&watched, SIGCHLD);
  fflush(NULL);
  signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_BLOCK, &watched, &before);
  pid_t parent = getpid(), command = fork();
  if (command > 0) {
    int wait_status = wait_for(command, &watched);
    const char *inside = ad_guest_running(guest);
    if (inside && (!WIFSIGNALED(wait_status) || is_fault(WTERMSIG(wait_status))))
      _exit(report_ended(inside, wait_status, failed));
    end_as(wait_status);
  }
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (command < 0) { /* fork failed: the command runs in this process */
    ad_guests_release(guest, 1);
    return;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) raise(SIGKILL);
  ad_guest_note_in(guest);
}
