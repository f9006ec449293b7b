// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
)

// maxAnswer is the maximum number of bytes that are read of an answer. A full page of ENIs,
// each with fifty addresses and their names, has about 16 MiB.
const maxAnswer = 64 << 20

// maxRefusal is the maximum number of bytes that are read of an error answer. EC2's have
// one code and one message, with a kilobyte or two for sts:DecodeAuthorizationMessage.
const maxRefusal = 256 << 10

// A checked client passes on EC2's answers. The client fails on an answer that is not EC2's. The SDK accepts an empty
// body, or a web page that happens to be XML, as an answer without content. An answer without content means "no such
// ENI". Where an answer has no content, it means "done". Captive portals and proxies send such pages with status 200.
//
// An answer to an action is a complete XML document of one element, named after the action. It
// must not say that the request was not carried out (EC2 API reference, the response elements
// of DeleteNetworkInterface and others: "return").
type checked struct{ HTTPClient }

func (c checked) Do(r *http.Request) (*http.Response, error) {
	resp, err := c.HTTPClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	done, most := resp.StatusCode/100 == 2, maxRefusal
	if done {
		most = maxAnswer
	}
	var read bytes.Buffer
	if _, err := read.ReadFrom(io.LimitReader(resp.Body, int64(most)+1)); err != nil {
		return nil, err
	}
	body := read.Bytes()
	if len(body) > most {
		return nil, invalidAnswer{fmt.Errorf("the answer, %s, is larger than %d KiB: %.200q", resp.Status,
			most>>10, body)}
	}
	if done {
		if err := answers(body, awsmiddleware.GetOperationName(r.Context())); err != nil {
			return nil, invalidAnswer{fmt.Errorf("%w: %.80q", err, body)}
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// An invalidAnswer is an error about an answer that cannot be EC2's.
type invalidAnswer struct{ error }

func (i invalidAnswer) Unwrap() error { return i.error }

// answers returns why the document cannot be an answer to the action.
func answers(document []byte, action string) error {
	d := xml.NewDecoder(bytes.NewReader(document))
	roots, depth, inReturn := 0, 0, false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && roots == 1 {
			return nil // the decoder has checked that all elements are closed
		}
		if err != nil {
			return fmt.Errorf("not an answer of EC2: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			if depth == 0 {
				roots++
				if t.Name.Local != action+"Response" || roots > 1 {
					return fmt.Errorf("not an answer of EC2 to %s", action)
				}
			}
			depth++
			inReturn = depth == 2 && t.Name.Local == "return"
		case xml.EndElement:
			depth--
			inReturn = false
		case xml.CharData:
			if inReturn && string(bytes.TrimSpace(t)) != "true" {
				return fmt.Errorf("EC2 has not carried out the call: return is %.80q", t)
			}
		}
	}
}
