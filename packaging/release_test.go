// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tag is the tag of the release that TestRelease makes.
const tag = "v0.9.7"

// A repository is a git repository with the files of this tree, and without its history.
type repository struct {
	*testing.T
	dir string
}

// newRepository makes a git repository, and commits the files of this tree. The tree may have changes, or may be no git
// repository.
func newRepository(t *testing.T) repository {
	t.Helper()
	r := repository{t, t.TempDir()}
	r.git("init", "--quiet")
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	r.git("--work-tree="+top, "add", "--all")
	r.git("commit", "--quiet", "--message=A user sees this")
	r.git("reset", "--quiet", "--hard")
	return r
}

// git runs git without the configuration of this machine. The date is always the same.
func (r repository) git(args ...string) {
	r.Helper()
	c := exec.Command("git", append([]string{"-C", r.dir}, args...)...)
	c.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_AUTHOR_DATE=1790000000 +0000",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a", "GIT_COMMITTER_DATE=1790000000 +0000")
	if out, err := c.CombinedOutput(); err != nil {
		r.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// write replaces the content of a file in the repository.
func (r repository) write(file, text string) {
	r.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o644); err != nil {
		r.Fatal(err)
	}
}

// release runs the script packaging/release with a signing key, and returns its output.
func (r repository) release(key string, args ...string) (string, error) {
	c := exec.Command(filepath.Join(r.dir, "packaging/release"), args...)
	c.Env = append(os.Environ(), "KEY="+key)
	out, err := c.CombinedOutput()
	return string(out), err
}

// refuses checks that the script makes no release, and that its error says why.
func (r repository) refuses(why string) {
	r.Helper()
	out, err := r.release("", "-o", r.TempDir(), runtime.GOARCH)
	if err == nil || !strings.Contains(out, "release: "+why) {
		r.Errorf("%v: %s\nwant %s", err, out, why)
	}
}

// TestRelease makes a release for this machine, and checks the version in all files. With CNI_TEST_PACKAGE=all, it
// makes the release for both architectures. It makes the release again in another directory, and the results must be
// equal.
func TestRelease(t *testing.T) {
	need(t, "git", "gpg", "dpkg-deb", "rpm")
	r := newRepository(t)
	r.refuses("HEAD has no tag vX.Y.Z")
	if out, err := r.release("", "-c"); err != nil || out != "## vX.Y.Z\n\n- A user sees this\n" {
		t.Errorf("the draft is %q, %v", out, err)
	}
	const notes = "It has a section.\n\n### Changed\n\nAll.\n\n"
	r.git("tag", "v2.0.0")
	r.refuses("HEAD has no tag vX.Y.Z")
	r.git("tag", tag)
	r.refuses("CHANGELOG.md has no section \"## " + tag + "\"")
	r.write("CHANGELOG.md", "# Changelog\n\n## "+tag+" (today)\n\n"+notes+"## v0.9.6\n\nOld.\n")
	r.refuses("the tree is not committed:  M CHANGELOG.md")
	r.git("commit", "--quiet", "--all", "--message=Its section")
	r.refuses("HEAD has no tag vX.Y.Z")
	r.git("tag", "--force", tag)
	r.write("stray.go", "package stray\n")
	r.refuses("the tree is not committed: ?? stray.go")
	r.git("clean", "--quiet", "--force")

	key, out := keyOf(t), t.TempDir()
	args := []string{"-o", out, runtime.GOARCH}
	if os.Getenv("CNI_TEST_PACKAGE") == "all" {
		args = []string{"-o", out, "amd64", "arm64"}
	}
	if text, err := r.release("no such key", args...); err == nil || !strings.Contains(text, "no secret key") {
		t.Errorf("without the key: %v: %s", err, text)
	}
	if text, err := r.release(key, args...); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	dir := filepath.Join(out, tag)
	if got := read(t, dir+"/NOTES.md"); strings.TrimSpace(got) != strings.TrimSpace(notes) {
		t.Errorf("the notes are %q", got)
	}
	stamped(t, dir)
	summed(t, dir)
	signed(t, dir)
	if os.Getenv("CNI_TEST_PACKAGE") == "all" {
		again, args := repository{t, t.TempDir()}, append([]string{"-o", t.TempDir()}, args[2:]...)
		again.git("clone", "--quiet", r.dir, ".")
		if text, err := again.release("", args...); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if d := cmp.Diff(read(t, dir+"/SHA256SUMS"), read(t, filepath.Join(args[1], tag, "SHA256SUMS"))); d != "" {
			t.Errorf("the second time another release (-1 +2):\n%s", d)
		}
	}
}

// keyOf makes a signing key for this test, and returns the key's name. When the test ends, the agent of gpg ends.
func keyOf(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GNUPGHOME", home)
	t.Cleanup(func() { command(t, "gpgconf", "--kill", "gpg-agent") })
	const name = "A test of releases"
	command(t, "gpg", "--batch", "--quiet", "--passphrase=", "--quick-generate-key", name, "ed25519", "sign", "never")
	return name
}

// stamped checks that each file of the release has the version of the tag.
func stamped(t *testing.T, dir string) {
	t.Helper()
	tarball(t, native(t, dir, ".tar.gz"))
	sbom(t, native(t, dir, ".cdx.json"))
	var bill struct {
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Type, Version string }
	}
	if err := json.Unmarshal([]byte(read(t, native(t, dir, ".cdx.json"))), &bill); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{
		"deb":  command(t, "dpkg-deb", "--field", native(t, dir, ".deb"), "Version"),
		"rpm":  command(t, "rpm", "--query", "--package", "--queryformat=%{VERSION}", native(t, dir, ".rpm")),
		"SBOM": bill.Metadata.Component.Version,
	}
	for _, c := range bill.Components {
		if c.Type == "application" {
			got["SBOM"] = c.Version
		}
	}
	programs, layout := t.TempDir(), t.TempDir()
	command(t, "tar", "-C", programs, "-xzf", native(t, dir, ".tar.gz"))
	got["program"] = strings.TrimPrefix(command(t, programs+"/cni-tool", "version"), "cni-tool version ")
	command(t, "tar", "-C", layout, "-xf", filepath.Join(dir, "cni-ipvlan-vpc-k8s-image-"+tag+".tar"))
	got["image"] = versionOf(t, layout)
	for what, version := range got {
		if strings.TrimPrefix(strings.TrimSpace(version), "v") != strings.TrimPrefix(tag, "v") {
			t.Errorf("the version of the %s is %q", what, version)
		}
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("image: {repository: example.com/cni}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	chart := filepath.Join(dir, "cni-ipvlan-vpc-k8s-chart-"+tag+".tgz")
	objects := command(t, "go", "run", "-C", "render", ".", chart, "name", "namespace", values)
	if !strings.Contains(objects, "image: example.com/cni:"+tag+"\n") {
		t.Errorf("the chart installs another image:\n%s", objects)
	}
	if got := command(t, "tar", "-xzOf", chart, "cni-ipvlan-vpc-k8s/Chart.yaml"); !strings.Contains(got,
		"\nversion: "+strings.TrimPrefix(tag, "v")+"\nappVersion: "+tag+"\n") {
		t.Errorf("the chart:\n%s", got)
	}
}

// summed checks that SHA256SUMS has the right checksums of all files.
func summed(t *testing.T, dir string) {
	t.Helper()
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = dir
	out, err := check.CombinedOutput()
	if err != nil {
		t.Errorf("SHA256SUMS: %v\n%s", err, out)
	}
	want, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range want {
		name := file.Name()
		if !strings.HasPrefix(name, "SHA256SUMS") && !strings.Contains(string(out), name+": OK\n") {
			t.Errorf("no checksum of %s", name)
		}
	}
	if n := strings.Count(string(out), "\n"); n < 7 || n != len(want)-2 {
		t.Errorf("%d checksums of %d files", n, len(want))
	}
}

// signed checks that the signature is valid for the checksums, and invalid for changed checksums.
func signed(t *testing.T, dir string) {
	t.Helper()
	verify := func() error {
		return exec.Command("gpg", "--verify", dir+"/SHA256SUMS.asc", dir+"/SHA256SUMS").Run()
	}
	if err := verify(); err != nil {
		t.Errorf("the signature: %v", err)
	}
	sums := []byte(read(t, dir+"/SHA256SUMS"))
	slices.Reverse(sums[:64])
	if err := os.WriteFile(dir+"/SHA256SUMS", sums, 0o644); err != nil {
		t.Fatal(err)
	}
	if verify() == nil {
		t.Error("the signature is valid for other checksums, too")
	}
}
