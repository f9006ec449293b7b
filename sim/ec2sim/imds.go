// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// versionDate matches the version at the beginning of a path (Guide: "Access instance metadata"). All versions have the
// same content.
var versionDate = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}`)

// The headers of IMDSv2 (Guide: "How Instance Metadata Service Version 2 works"), and the longest lifetime of a token.
const (
	tokenHeader = "X-aws-ec2-metadata-token"
	ttlHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
	maxTTL      = 21600
)

// A view is the list of ENIs that the instance's metadata shows. The field "since" is the time from which metadata
// shows this list.
type view struct {
	since time.Time
	enis  []ENI
}

// publishMetadata makes the instance's metadata show the present ENIs after the duration [Config.MetadataDelay].
func (s *Sim) publishMetadata(i *Instance) {
	attached := slices.DeleteFunc(i.snapshots(), func(e ENI) bool { return e.AttachmentStatus == "attaching" })
	i.views = append(i.views, view{since: time.Now().Add(s.cfg.MetadataDelay), enis: attached})
	i.currentView()
}

// currentView returns the current view, and drops older views.
func (i *Instance) currentView() view {
	now := time.Now()
	for len(i.views) > 1 && !i.views[1].since.After(now) {
		i.views = i.views[1:]
	}
	return i.views[0]
}

// Metadata returns the metadata service of the instance. The service accepts only IMDSv2 requests, as on instances of
// Amazon Linux 2023 (Guide: "Use the Instance Metadata Service to access instance metadata").
func (i *Instance) Metadata() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.recordMetadata(r)
		status, silent := i.requestFailure(r.URL.Path)
		switch {
		case silent:
			<-r.Context().Done()
		case status != 0:
			writeErrorPage(w, status)
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token":
			i.giveToken(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			writeErrorPage(w, http.StatusMethodNotAllowed)
		case !i.isValidToken(r.Header.Get(tokenHeader)):
			writeErrorPage(w, http.StatusUnauthorized)
		default:
			i.answerPath(w, r.URL.Path)
		}
	})
}

// giveToken answers PUT /latest/api/token. IMDSv2 answers 403 to a request through a proxy. It answers 400 if the
// lifetime is not between one second and six hours.
func (i *Instance) giveToken(w http.ResponseWriter, r *http.Request) {
	ttl, err := strconv.Atoi(r.Header.Get(ttlHeader))
	switch {
	case r.Header.Get("X-Forwarded-For") != "":
		writeErrorPage(w, http.StatusForbidden)
		return
	case err != nil || ttl < 1 || ttl > maxTTL:
		writeErrorPage(w, http.StatusBadRequest)
		return
	}
	token := rand.Text()
	i.metadata.Lock()
	i.metadata.tokens[token] = time.Now().Add(time.Duration(ttl) * time.Second)
	i.metadata.Unlock()
	w.Header().Set(ttlHeader, strconv.Itoa(ttl))
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, token)
}

func (i *Instance) isValidToken(token string) bool {
	i.metadata.Lock()
	defer i.metadata.Unlock()
	until, ok := i.metadata.tokens[token]
	return ok && time.Now().Before(until)
}

// answerPath answers with the value of a key, or with the names in a directory, one on each line. The name of a
// directory ends in a slash. The last line has no newline.
func (i *Instance) answerPath(w http.ResponseWriter, path string) {
	path = versionDate.ReplaceAllString(strings.Trim(path, "/"), "latest")
	tree := i.tree(path)
	text, ok := tree[path]
	if !ok {
		text = listDirectory(tree, path)
	}
	if text == "" {
		writeErrorPage(w, http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, text)
}

// listDirectory returns the directory at path, or "" if there is none.
func listDirectory(tree map[string]string, path string) string {
	if path != "" {
		path += "/"
	}
	names := map[string]bool{}
	for key := range tree {
		rest, ok := strings.CutPrefix(key, path)
		if !ok {
			continue
		}
		name, _, deeper := strings.Cut(rest, "/")
		if deeper {
			name += "/"
		}
		if name != "" {
			names[name] = true
		}
	}
	return joinLines(slices.Sorted(maps.Keys(names)))
}

func writeErrorPage(w http.ResponseWriter, code int) {
	title := fmt.Sprintf("%d - %s", code, http.StatusText(code))
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(code)
	fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"iso-8859-1\"?>\n<html>\n <head>\n  <title>%s</title>\n </head>\n"+
		" <body>\n  <h1>%s</h1>\n </body>\n</html>\n", title, title)
}

// MetadataCalls returns, in order, the requests to the metadata service since the last [Sim.ResetCalls]. Each request
// is a text, for example "GET /latest/meta-data/mac".
func (i *Instance) MetadataCalls() []string {
	i.metadata.Lock()
	defer i.metadata.Unlock()
	return slices.Clone(i.metadata.calls)
}

func (i *Instance) recordMetadata(r *http.Request) {
	i.metadata.Lock()
	defer i.metadata.Unlock()
	i.metadata.calls = append(i.metadata.calls, r.Method+" "+r.URL.Path)
}

func (i *Instance) forgetCalls() {
	i.metadata.Lock()
	defer i.metadata.Unlock()
	i.metadata.calls = nil
}
