//! Every kernel on the emulator, through its launcher, against the oracle: at small and odd shapes,
//! under a few seeds each, which draw the order of what is concurrent. And every launcher: launch
//! geometry, nothing to do, limits.

mod cases;
mod harness;
mod views_only;
