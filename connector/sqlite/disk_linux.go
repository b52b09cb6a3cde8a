package sqlite

import "golang.org/x/sys/unix"

// networks are the file systems, by the numbers of statfs(2), on which locks or the shared memory of a write-ahead log do
// not work between machines (https://www.sqlite.org/wal.html).
var networks = map[uint32]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.CIFS_SUPER_MAGIC: "SMB", unix.SMB2_SUPER_MAGIC: "SMB", unix.SMB_SUPER_MAGIC: "SMB",
	unix.AFS_SUPER_MAGIC: "AFS", unix.CODA_SUPER_MAGIC: "Coda",
}

// readDisk returns how many bytes the file system of a folder has left for us, and its kind if it is one of a network.
func readDisk(folder string) (free int64, network string, err error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(folder, &stat); err != nil {
		return 0, "", err
	}
	return int64(stat.Bavail) * int64(stat.Bsize), networks[uint32(stat.Type)], nil
}
