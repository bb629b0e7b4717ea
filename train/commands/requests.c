/* Handlers of signals with which a person asks ranks to stop or to write a checkpoint. */
#include <signal.h>

#include "trainer.h"

void ad_cli_on_request(void (*handler)(int signal_number)) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  sigaction(SIGHUP, NULL, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL);
}

void ad_cli_on_checkpoint(void (*handler)(int signal_number)) {
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR1, &action, NULL);
}
