//! Finds the file system of a path in the Linux table of mounts.

use std::path::{Path, PathBuf};

/// The type of the file system of `path`, which must be absolute and free of links.
pub(super) fn file_system<'a>(mountinfo: &'a str, path: &Path) -> Option<&'a str> {
    let mut best: Option<(PathBuf, &str)> = None;
    for line in mountinfo.lines() {
        let Some((point, kind)) = parse(line) else {
            continue;
        };
        let is_longer = best
            .as_ref()
            .is_none_or(|(longest, _)| point.as_os_str().len() >= longest.as_os_str().len());
        // The later of two mounts on one point hides the earlier.
        if path.starts_with(&point) && is_longer {
            best = Some((point, kind));
        }
    }
    best.map(|(_, kind)| kind)
}

/// Parses the mount point (the fifth field) and the type (the first field after the hyphen).
fn parse(line: &str) -> Option<(PathBuf, &str)> {
    let (mount, system) = line.split_once(" - ")?;
    let point = mount.split(' ').nth(4)?;
    Some((PathBuf::from(unescape(point)), system.split(' ').next()?))
}

/// Mountinfo writes spaces as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let code = rest.get(at + 1..at + 4);
        let code = code.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push_str(&rest[..at]);
        let (read, c) = code.map_or((1, '\\'), |code| (4, char::from(code)));
        plain.push(c);
        rest = &rest[at + read..];
    }
    plain + rest
}

/// Whether this is a network file system, where locks and syncs are unreliable.
pub(super) fn is_network(kind: &str) -> bool {
    let plain = kind.strip_prefix("fuse.").unwrap_or(kind);
    matches!(
        plain,
        "nfs"
            | "nfs4"
            | "cifs"
            | "smb3"
            | "smbfs"
            | "9p"
            | "afs"
            | "ceph"
            | "glusterfs"
            | "lustre"
            | "beegfs"
            | "gfs2"
            | "ocfs2"
            | "sshfs"
            | "s3fs"
            | "gcsfuse"
            | "rclone"
            | "davfs"
            | "ncpfs"
            | "coda"
            | "virtiofs"
            | "vboxsf"
            | "drvfs"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
40 22 0:40 / /srv/my\\040data rw,relatime shared:9 master:2 - nfs4 host:/x rw
41 22 0:41 / /srv rw - xfs /dev/sdb rw
42 41 0:42 / /srv rw - tmpfs tmpfs rw
";

    #[test]
    fn a_path_lies_on_the_longest_mount_above_it() {
        let kind = |path: &str| file_system(MOUNTS, Path::new(path));
        assert_eq!(kind("/var/lib"), Some("ext4"));
        assert_eq!(kind("/srv/my data/x"), Some("nfs4"));
        assert_eq!(kind("/srv/my database"), Some("tmpfs"));
        assert_eq!(kind("/procession"), Some("ext4"));
        assert_eq!(file_system("nonsense\n", Path::new("/")), None);
    }

    #[test]
    fn file_systems_elsewhere_are_known() {
        assert!(is_network("nfs4") && is_network("fuse.sshfs") && is_network("cifs"));
        assert!(!is_network("ext4") && !is_network("overlay") && !is_network("fuse"));
    }

    #[test]
    fn a_broken_escape_stays_as_it_is() {
        assert_eq!(unescape("a\\040b\\9z\\"), "a b\\9z\\");
    }
}
