//! What the embedded store does with damaged, foreign and copied files, and with a full disk.

mod damage;
mod disk;
mod files;
mod scene;
