// Reads the archives that are named on the command line by Go's own packages, and prints a line for
// each file in them: its name, its size, and the SHA-256 of its content.
package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strings"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tell(name string, content io.Reader) {
	hash := sha256.New()
	size, err := io.Copy(hash, content)
	check(err)
	fmt.Printf("%s %d %x\n", name, size, hash.Sum(nil))
}

func readTar(stream io.Reader) {
	archive := tar.NewReader(stream)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		check(err)
		tell(header.Name, archive)
	}
	_, err := io.Copy(io.Discard, stream) // the checksum of a gzip follows the end of the tar
	check(err)
}

func readZip(path string) {
	archive, err := zip.OpenReader(path)
	check(err)
	for _, file := range archive.File {
		content, err := file.Open()
		check(err)
		tell(file.Name, content)
		check(content.Close())
	}
}

func main() {
	for _, path := range os.Args[1:] {
		if strings.HasSuffix(path, ".zip") {
			readZip(path)
			continue
		}
		file, err := os.Open(path)
		check(err)
		if strings.HasSuffix(path, ".tar") {
			readTar(file)
			continue
		}
		stream, err := gzip.NewReader(file)
		check(err)
		stream.Multistream(false) // as readers do that read only one member
		readTar(stream)
	}
}
