/* Children that a failed check, or a fault, is meant to end. */
#ifndef FAKES_DYING_H
#define FAKES_DYING_H

/* Runs `what` in a forked child, which must abort having printed every one of
 * the texts (up to NULL); fails the case otherwise. Nothing of a fake may have
 * been called before. */
void dies(void (*what)(void), const char *const *texts);
/* Ends by a signal, or by the exit code that a sanitizer makes of one. */
void crashes(void (*what)(void));
/* Ends itself with an exit code that is not 0, having printed `text`. */
void ends_with(void (*what)(void), const char *text);
/* Ends with exit code 0. Milliseconds that it took. */
int lives(void (*what)(void));

#endif
