// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"bytes"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
)

// The version of the API, and the namespace of its answers.
const (
	apiVersion = "2016-11-15"
	namespace  = "http://ec2.amazonaws.com/doc/" + apiVersion + "/"
)

// actions has the actions of the API by name. The input of a method has the parameters of the action.
var actions = map[string]action{
	"AssignIpv6Addresses":             newAction((*Sim).assignIPv6Addresses),
	"AssignPrivateIpAddresses":        newAction((*Sim).assignPrivateIPAddresses),
	"AttachNetworkInterface":          newAction((*Sim).attachNetworkInterface),
	"AuthorizeSecurityGroupIngress":   newAction((*Sim).authorizeSecurityGroupIngress),
	"CreateNetworkInterface":          newAction((*Sim).createNetworkInterface),
	"CreateSecurityGroup":             newAction((*Sim).createSecurityGroup),
	"CreateTags":                      newAction((*Sim).createTags),
	"DeleteKeyPair":                   newAction((*Sim).deleteKeyPair),
	"DeleteNetworkInterface":          newAction((*Sim).deleteNetworkInterface),
	"DeleteSecurityGroup":             newAction((*Sim).deleteSecurityGroup),
	"DescribeImages":                  newAction((*Sim).describeImages),
	"DescribeInstanceTypeOfferings":   newAction((*Sim).describeInstanceTypeOfferings),
	"DescribeInstanceTypes":           newAction((*Sim).describeInstanceTypes),
	"DescribeInstances":               newAction((*Sim).describeInstances),
	"DescribeKeyPairs":                newAction((*Sim).describeKeyPairs),
	"DescribeNetworkInterfaces":       newAction((*Sim).describeNetworkInterfaces),
	"DescribeSecurityGroups":          newAction((*Sim).describeSecurityGroups),
	"DescribeSubnets":                 newAction((*Sim).describeSubnets),
	"DescribeVpcPeeringConnections":   newAction((*Sim).describeVpcPeeringConnections),
	"DescribeVpcs":                    newAction((*Sim).describeVpcs),
	"DetachNetworkInterface":          newAction((*Sim).detachNetworkInterface),
	"ImportKeyPair":                   newAction((*Sim).importKeyPair),
	"ModifyNetworkInterfaceAttribute": newAction((*Sim).modifyNetworkInterfaceAttribute),
	"RunInstances":                    newAction((*Sim).runInstances),
	"TerminateInstances":              newAction((*Sim).terminateInstances),
	"UnassignIpv6Addresses":           newAction((*Sim).unassignIPv6Addresses),
	"UnassignPrivateIpAddresses":      newAction((*Sim).unassignPrivateIPAddresses),
}

// An action computes the answer to a request. The form has the request's parameters. The caller holds the lock.
type action func(*Sim, form) (output, error)

// newAction returns an action that decodes the form and calls the method f. For a dry run, the action does not call f.
func newAction[In any, Out any, P interface {
	*Out
	output
}](f func(*Sim, *In) (P, error)) action {
	return func(s *Sim, parameters form) (output, error) {
		in := new(In)
		if err := parameters.decode(in); err != nil {
			return nil, err
		}
		if parameters["DryRun"] == "true" {
			return nil, refuse("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
		}
		out, err := f(s, in)
		if err != nil {
			return nil, err
		}
		return out, nil
	}
}

// An output is the answer to an action. It begins with a head.
type output interface{ identify(request string) }

// A head begins each answer.
type head struct {
	RequestID string `xml:"requestId"`
}

func (h *head) identify(request string) { h.RequestID = request }

type emptyOutput struct {
	head
	Return bool `xml:"return"`
}

type errorOutput struct {
	Code      string `xml:"Errors>Error>Code"`
	Message   string `xml:"Errors>Error>Message"`
	RequestID string `xml:"RequestID"`
}

// ServeHTTP answers a request of the EC2 query API. It does not check signatures.
func (s *Sim) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil { // if a test calls ServeHTTP directly, without a server of net/http, the body may be nil
		r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
	}
	if err := r.ParseForm(); err != nil {
		reject(w, refuse("MalformedQueryString", "%v", err), "")
		return
	}
	if err := s.checkTime(w, r); err != nil {
		reject(w, err, "")
		return
	}
	f := form{}
	for name, values := range r.Form {
		f[name] = values[0]
	}
	var out output
	var err error
	var request string
	var lost bool
	s.update(func() {
		request = fmt.Sprintf("00000000-0000-4000-8000-%012x", s.nextNumber("request"))
		out, lost, err = s.playScript(f)
		s.recordCall(f, err, lost)
	})
	w.Header().Set("x-amzn-RequestId", request)
	switch {
	case !s.awaitDelay(r, f["Action"]): // the caller has given up
	case lost:
		panic(http.ErrAbortHandler) // a server of net/http then closes the connection
	case err != nil:
		reject(w, err, request)
	default:
		out.identify(request)
		writeXML(w, http.StatusOK, xml.Name{Space: namespace, Local: f["Action"] + "Response"}, out)
	}
}

func reject(w http.ResponseWriter, err error, request string) {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		r = &refusal{"InternalError", err.Error()}
	}
	writeXML(w, httpStatus(r.code), xml.Name{Local: "Response"}, &errorOutput{r.code, r.message, request})
}

// dispatch checks a call, and then calls the action. The checks have EC2's order: the action, the token bucket, the
// permission. Before the last check, dispatch returns the error of a fault that a test has set.
func (s *Sim) dispatch(f form) (output, error) {
	name := f["Action"]
	act, ok := actions[name]
	switch {
	case name == "":
		return nil, refuse("MissingAction", "The request is missing an action.")
	case !ok:
		return nil, refuse("InvalidAction", "The action %s is not valid for this web service.", name)
	case cmp.Or(f["Version"], apiVersion) != apiVersion:
		return nil, refuse("NoSuchVersion", "The specified API version does not exist.")
	}
	for _, gate := range []func(form) error{s.takeToken, s.injectedFault, s.objectRefusal, s.checkDenied} {
		if err := gate(f); err != nil {
			return nil, err
		}
	}
	if f["DryRun"] != "" && api.Is(name, api.NoDryRun) { // the error is a guess
		return nil, refuse("UnknownParameter", "The parameter DryRun is not recognized")
	}
	return act(s, f)
}

// checkDenied refuses an action that the Config denies. A creation with tags also needs the permission for CreateTags
// (Guide: "Grant permission to tag Amazon EC2 resources during creation").
func (s *Sim) checkDenied(f form) error {
	action := f["Action"]
	if !slices.Contains(s.cfg.Denied, action) && f.hasPrefix("TagSpecification.") {
		action = "CreateTags"
	}
	if slices.Contains(s.cfg.Denied, action) {
		return &refusal{"UnauthorizedOperation", s.unauthorizedMessage(action)}
	}
	return nil
}

// unauthorizedMessage returns EC2's message for a missing permission (in practice). The end of the message looks like
// EC2's encoded part, and is as long as EC2's encoded part (API: "Error codes", UnauthorizedOperation).
func (s *Sim) unauthorizedMessage(action string) string {
	return fmt.Sprintf("You are not authorized to perform this operation. User: "+
		"arn:aws:sts::%s:assumed-role/node/i-1 is not authorized "+
		"to perform: ec2:%[2]s on resource: arn:aws:ec2:%s:%[1]s:network-interface/* because no identity-based "+
		"policy allows the "+
		"ec2:%[2]s action. Encoded authorization failure message: %[4]s", s.cfg.Account, action, s.cfg.Region,
		strings.Repeat("EC2sim-", 120))
}

// awaitDelay waits for the time that Delay has set for the action. It returns false if the caller gives up earlier.
func (s *Sim) awaitDelay(r *http.Request, action string) bool {
	s.mu.Lock()
	d := s.delays[action]
	s.mu.Unlock()
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// writeXML writes an answer in EC2's layout.
func writeXML(w http.ResponseWriter, code int, name xml.Name, body any) {
	text := bytes.NewBufferString(xml.Header)
	e := xml.NewEncoder(text)
	e.Indent("", "    ")
	if err := e.EncodeElement(body, xml.StartElement{Name: name}); err != nil {
		panic(fmt.Sprintf("ec2sim: answer %T: %v", body, err))
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(code)
	w.Write(text.Bytes())
}
